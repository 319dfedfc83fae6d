"""The repository as the tidy tests read it: files, modules and what they import."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "postbus"

_SKIPPED_FOLDERS = {
    ".git",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".venv",
    "__pycache__",
    "build",
    "dist",
    "node_modules",
    "postbus-data",
}
_BINARY = {".db", ".pyc", ".so", ".whl", ".gz", ".png"}


def text_files() -> Iterator[Path]:
    """Every file that belongs to the project and holds text."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED_FOLDERS and not name.endswith(".egg-info")
        ]
        for name in names:
            path = Path(folder, name)
            if path.suffix not in _BINARY:
                yield path


def pages() -> list[Path]:
    """All Markdown pages."""
    return sorted(path for path in text_files() if path.suffix == ".md")


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> set[str]:
    """Full names of all a file imports, at its top or inside a function: `a.b` and `a.b.c`."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def names_used(path: Path) -> set[str]:
    """Every name and attribute that a file mentions."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return found
