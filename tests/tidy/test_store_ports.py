"""A store is known by its ports: only one place knows which kinds there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy.tree import SOURCE, imports, module_of, shown, sources

STORE = SOURCE / "store"
KINDS = sorted({path.parent.name for path in STORE.glob("*/store.py")} - {"ports"})
OPENING = "postbus.store.opening"
BUILT_ON = {"log": {"sqlite"}}
"""A commit log has the index of a SQLite store beside it."""


def _kinds_used(path: Path) -> set[str]:
    return {
        name.split(".")[2]
        for name in imports(path)
        if name.startswith("postbus.store.") and name.split(".")[2] in KINDS
    }


def test_there_are_several_kinds_of_store() -> None:
    assert set(KINDS) >= {"memory", "sqlite"}


@pytest.mark.parametrize("path", sources(), ids=shown)
def test_a_kind_of_store_is_used_by_itself_and_where_it_is_chosen(path: Path) -> None:
    module = module_of(path)
    if module == OPENING:
        return
    own = {kind for kind in KINDS if module.startswith(f"postbus.store.{kind}")}
    own |= {each for kind in own for each in BUILT_ON.get(kind, ())}
    assert _kinds_used(path) <= own, f"ask a port, or choose it in {OPENING}"


def test_a_port_knows_no_kind_of_store() -> None:
    allowed = ("postbus.store.ports", "postbus.store.batch", "postbus.model")
    for path in (STORE / "ports").glob("*.py"):
        ours = {name for name in imports(path) if name.startswith("postbus.")}
        assert not {name for name in ours if not name.startswith(allowed)}, shown(path)


def test_a_driver_is_used_by_its_own_kind_of_store_only() -> None:
    for path in sources():
        if "apsw" in {name.split(".")[0] for name in imports(path)}:
            module = module_of(path)
            assert module == OPENING or module.startswith("postbus.store.sqlite."), module
