"""Who may import whom. The table is the architecture; ARCHITECTURE.md draws it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import imports, module_of, shown, sources, tree

MAY_IMPORT: dict[str, set[str]] = {
    "amqp": set(),
    "errors": set(),
    "settings": set(),
    "model": {"errors"},
    "observe": {"model"},
    "broker": {"errors", "model"},
    "rules": {"errors", "model"},
    "store": {"errors", "model"},
    "tls": {"observe", "settings"},
    "config": {"errors", "model", "rules"},
    "auth": {"errors", "model", "observe", "settings"},
    "client": {"auth"},
    "messages": {"amqp", "broker", "errors", "model"},
    "net": {"errors", "model", "observe", "settings", "tls"},
    "runtime": {"broker", "errors", "model", "observe", "store"},
    "namespace": {
        "amqp",
        "auth",
        "broker",
        "errors",
        "messages",
        "model",
        "observe",
        "rules",
        "runtime",
        "settings",
        "store",
    },
    "feed": {"amqp", "broker", "errors", "messages", "model", "namespace", "runtime", "store"},
    "gateway": {
        "amqp",
        "auth",
        "broker",
        "errors",
        "messages",
        "model",
        "namespace",
        "net",
        "observe",
        "runtime",
        "settings",
    },
    "http": {
        "auth",
        "broker",
        "errors",
        "feed",
        "gateway",
        "messages",
        "model",
        "namespace",
        "net",
        "observe",
        "runtime",
    },
    "ops": {
        "auth",
        "config",
        "errors",
        "model",
        "namespace",
        "net",
        "observe",
        "rules",
        "runtime",
        "settings",
        "store",
        "tls",
    },
    "server": {
        "auth",
        "broker",
        "config",
        "errors",
        "feed",
        "gateway",
        "http",
        "model",
        "namespace",
        "net",
        "observe",
        "ops",
        "runtime",
        "settings",
        "store",
        "tls",
    },
    "cli": {"client", "ops", "server", "settings", "tls"},
    "__main__": {"cli"},
}

# Tested without sleeps and run by the simulator: no I/O, no clock, no chance, no threads.
PURE = {"amqp", "broker", "errors", "feed", "model", "rules"}
# So these may use nothing of the standard library but what computes.
COMPUTING = {
    *("__future__", "abc", "array", "base64", "bisect", "collections", "dataclasses", "datetime"),
    *("decimal", "enum", "functools", "hashlib", "heapq", "itertools", "json", "math", "operator"),
    *("re", "reprlib", "string", "struct", "typing", "urllib.parse", "uuid", "zlib"),
}
# A library that computes and nothing else: a parser, told its grammar as text.
LIBRARIES = {"rules": {"lark"}}
# What those modules hold that is not computing.
IMPURE_NAMES = {"uuid1", "uuid4", "getnode", "utcnow", "today"}
IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "__import__"}


def layer_of(path: Path) -> str:
    parts = module_of(path).split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", sources(), ids=shown)
def test_a_module_imports_only_layers_below_it(path: Path) -> None:
    layer = layer_of(path)
    if not layer:
        assert not {name for name in imports(path) if name.startswith("postbus.")}
        return
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("postbus.")}
    assert layer in MAY_IMPORT, f"{layer} is a new layer: give it a row in MAY_IMPORT"
    assert ours <= MAY_IMPORT[layer] | {layer}


@pytest.mark.parametrize("path", [p for p in sources() if layer_of(p) in PURE], ids=shown)
def test_a_pure_module_has_no_way_to_the_outside(path: Path) -> None:
    for name in imports(path):
        if name.startswith("postbus"):
            continue
        top = name.split(".")[0]
        if top in LIBRARIES.get(layer_of(path), ()):
            continue
        assert top in sys.stdlib_module_names, f"{name} is not of the standard library"
        known = {top, ".".join(name.split(".")[:2])}
        assert known & COMPUTING, f"{name} may reach the outside"
    for node in ast.walk(tree(path)):
        name = getattr(node, "attr", None) or getattr(node, "id", None)
        assert name not in IMPURE_NAMES, f"line {node.lineno}: {name}"  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_CALLS, f"line {node.lineno}: {node.func.id}"
        if isinstance(node, ast.Attribute) and node.attr == "now":
            assert not (isinstance(node.value, ast.Name) and node.value.id == "datetime")


def test_http_and_server_meet_only_where_the_parts_are_put_together() -> None:
    meeting = {
        module_of(path)
        for path in sources()
        if layer_of(path) == "server"
        and any(name.startswith("postbus.http") for name in imports(path))
    }
    assert meeting <= {"postbus.server"}


def test_every_module_is_imported_by_another_or_is_where_a_command_starts() -> None:
    entries = {"postbus.cli.main", "postbus.__main__"}
    used = set().union(*(imports(path) for path in sources()))
    modules = {module_of(path) for path in sources() if path.name != "__init__.py"}
    assert modules - used - entries == set()


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base_classes"}
    assert not {shown(path) for path in sources() if path.stem in empty}
