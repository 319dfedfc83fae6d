"""Who may import whom. The order of the rooms is the architecture; ARCHITECTURE.md draws it."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.tree import imports, module_of, shown, sources, tree

# The rooms from the ground up. A room imports rooms of the rows above its own, and no others:
# imports for type checking count, so there is no cycle of rooms in any sense.
ROWS: tuple[frozenset[str], ...] = (
    frozenset({"amqp", "errors", "settings"}),
    frozenset({"model"}),
    frozenset({"broker", "observe", "rules", "store"}),
    frozenset({"auth", "config", "messages", "runtime", "tls"}),
    frozenset({"client", "namespace", "net"}),
    frozenset({"feed", "gateway", "ops", "syphon"}),
    frozenset({"http", "paired"}),
    frozenset({"server"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
ROW_OF = {room: number for number, rooms in enumerate(ROWS) for room in rooms}

# Files that import each other in a circle can only be understood together.
KNOT_MAX = 8

# Tested without sleeps and run by the simulator: no I/O, no clock, no chance, no threads.
PURE = {"amqp", "broker", "errors", "model", "rules"}
PURE_MODULES = {"postbus.feed.events", "postbus.feed.lines"}
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


def room_of(path: Path) -> str:
    parts = module_of(path).split(".")
    return parts[1] if len(parts) > 1 else ""


def is_pure(path: Path) -> bool:
    return room_of(path) in PURE or module_of(path) in PURE_MODULES


@pytest.mark.parametrize("path", sources(), ids=shown)
def test_a_module_imports_only_rooms_above_its_own_in_the_order(path: Path) -> None:
    room = room_of(path)
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("postbus.")}
    if not room:
        assert not ours
        return
    assert room in ROW_OF, f"{room} is a new room: give it a place in ROWS"
    assert {other for other in ours - {room} if ROW_OF[other] >= ROW_OF[room]} == set()


@cache
def _module_graph() -> dict[str, set[str]]:
    modules = {module_of(path) for path in sources()}
    return {module_of(path): imports(path) & modules - {module_of(path)} for path in sources()}


def _knots(graph: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules that all reach each other."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        left = [start]
        while left:
            found = graph[left.pop()] - seen
            seen |= found
            left += found
        reach[start] = seen
    knots = {
        frozenset({start, *(other for other in reach[start] if start in reach[other])})
        for start in graph
        if start in reach[start]
    }
    return [set(knot) for knot in knots]


def test_the_files_of_a_room_form_no_large_knot() -> None:
    for knot in _knots(_module_graph()):
        rooms = {module.split(".")[1] for module in knot}
        assert len(rooms) == 1, f"a knot over several rooms: {sorted(knot)}"
        assert len(knot) <= KNOT_MAX, f"cut the knot: {sorted(knot)}"


@pytest.mark.parametrize("path", [p for p in sources() if is_pure(p)], ids=shown)
def test_a_pure_module_has_no_way_to_the_outside(path: Path) -> None:
    for name in imports(path):
        if name.startswith("postbus"):
            continue
        top = name.split(".")[0]
        if top in LIBRARIES.get(room_of(path), ()):
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


def test_every_module_is_imported_by_another_or_is_where_a_command_starts() -> None:
    entries = {"postbus.cli.main", "postbus.__main__"}
    # Until it is chosen in `postbus.store.opening`, only the tests open a store with a log.
    entries.add("postbus.store.log.store")
    used = set().union(*(imports(path) for path in sources()))
    modules = {module_of(path) for path in sources() if path.name != "__init__.py"}
    assert modules - used - entries == set()


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base_classes"}
    assert not {shown(path) for path in sources() if path.stem in empty}
