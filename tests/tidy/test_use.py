"""Nothing is declared that nothing uses: a setting without effect is a promise broken."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache

from postbus.broker.record_kinds import MEANINGS
from postbus.observe.meters import ConnectionMeter, EntityMeter, StoreMeter
from postbus.settings import declared
from tests.tidy.generated import refusals
from tests.tidy.tree import ROOT, SOURCE, imports, names_used, sources, tree


@cache
def used_outside(*declaring: str) -> frozenset[str]:
    """Names that the sources mention, but for the files that declare them."""
    left_out = {SOURCE / name for name in declaring}
    return frozenset().union(*(names_used(path) for path in sources() if path not in left_out))


def settings_read() -> set[str]:
    """What is read from an object called settings."""
    found = set()
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute):
                owner = getattr(node.value, "id", None) or getattr(node.value, "attr", None)
                if owner in ("settings", "_settings"):
                    found.add(node.attr)
    return found


def test_every_setting_has_an_effect() -> None:
    effective_where_declared: set[str] = set()
    assert set(declared()) - settings_read() == effective_where_declared


def test_every_number_of_a_meter_is_counted_somewhere() -> None:
    meters = (EntityMeter(), StoreMeter(), ConnectionMeter())
    names = {(name, callable(getattr(meter, name))) for meter in meters for name in dir(meter)}
    fields = {name for name, is_method in names if not is_method and name[0] != "_"}
    counted_by_method = {
        "dead_letters": "dead_lettered",
        "refusals": "refused",
        "commit_seconds": "committed",
        "commit_records": "committed",
        "bytes_written": "committed",
    }
    counted_by_kind = {name for meaning in MEANINGS.values() for name in meaning.meters}
    wanted = {counted_by_method.get(name, name) for name in fields - counted_by_kind}
    assert wanted - used_outside("observe/meters.py", "observe/metrics.py") == set()


def test_every_refusal_is_made_somewhere() -> None:
    made = {one.__name__ for one in refusals() if not one.__subclasses__()}
    assert made - used_outside("errors.py") == set()


def test_every_dependency_is_imported_and_says_why_it_is_there() -> None:
    listed = (ROOT / "requirements" / "runtime.in").read_text()
    wanted = {line for line in listed.splitlines() if line and not line.startswith("#")}
    imported = {
        name.split(".")[0].replace("_", "-") for path in sources() for name in imports(path)
    }
    through_uvicorn = {"httptools"}
    assert wanted - imported - through_uvicorn == set()

    architecture = (ROOT / "ARCHITECTURE.md").read_text().partition("## Dependencies")[2]
    explained = {
        name
        for row in re.findall(r"^\| (`.*?) \|", architecture, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", row)
    }
    for extra in ("spark", "paired"):
        needed = (ROOT / "requirements" / f"{extra}.in").read_text()
        wanted |= set(re.findall(r"^[\w-]+", needed, re.MULTILINE))
    assert explained == wanted


def test_a_package_that_claims_types_ships_its_marker() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "Typing :: Typed" in project["project"]["classifiers"]
    shipped = project["tool"]["setuptools"]["package-data"]
    packages = {path.parent for path in (ROOT / "src").glob("*/__init__.py")}
    assert {path.name for path in packages if (path / "py.typed").exists()} == set(shipped)
    assert {path.name for path in packages} == set(shipped)
