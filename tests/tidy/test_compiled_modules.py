"""What the modules that mypyc compiles must leave alone (docs/compiling.md)."""

from __future__ import annotations

import ast

from tests.tidy.tree import ROOT, SOURCE, shown


def compiled_modules() -> list[str]:
    """The sources that `setup.py` compiles."""
    names = {"SHELL", "INTERPRETED"}
    listed = {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in names
    }
    core = {
        path.relative_to(SOURCE).as_posix()
        for room in ("amqp", "broker")
        for path in (SOURCE / room).rglob("*.py")
    }
    return sorted((core | listed["SHELL"]) - listed["INTERPRETED"])


def test_no_compiled_class_is_an_abc() -> None:
    """mypyc gives all its ABCs one cache of instance checks, the cache of `abc.ABC` itself. A
    browser then passed for a sender in interpreted code, and kept its link without a right."""
    modules = compiled_modules()
    assert len(modules) > 50
    for module in modules:
        path = SOURCE / module
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name | ast.alias):
                name = node.id if isinstance(node, ast.Name) else node.name
                assert name not in ("ABC", "ABCMeta"), f"{shown(path)} has an {name}"
