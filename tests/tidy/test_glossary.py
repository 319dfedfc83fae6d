"""One word, one meaning: names of classes and modules follow docs/glossary.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tidy.test_layers import room_of
from tests.tidy.tree import ROOT, shown, sources, tree

GLOSSARY = ROOT / "docs" / "glossary.md"
WORDS_MAX = 30

# Refused in any part of a name of a class or module.
BANNED = {
    *("inlet", "outlet", "line", "courier", "shipment", "residence", "sorter", "undertaker"),
    *("grave", "parcel", "trail", "spelling", "promise", "promises", "stirred", "awake"),
}
# Refused as a whole name.
BANNED_ALONE = {
    *("asked", "told", "made", "kept", "written", "wrong", "below", "look", "standing"),
    *("once", "seen", "former", "via", "host"),
}
# Rooms where a word has its ordinary meaning.
AT_HOME = {("net", "host"), ("auth", "host")}

# Outcomes and events of AMQP and refusals of Azure are participles, and stay.
OF_THE_PROTOCOL = {"amqp", "errors"}
# Single participles that are left. A ratchet: nothing is added here.
PARTICIPLES_LEFT = {
    *("Damaged", "Described", "Exported", "Ordered", "Posted", "Published", "Retired"),
    *("Sorted", "Spelled", "Trimmed", "Upgraded", "_Adopted", "_Owned", "_Sorted"),
}


def words_of(name: str) -> list[str]:
    """The parts of a name: `SessionLine` is session and line, `send_via` send and via."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names() -> Iterator[tuple[str, str, str]]:
    """Every class and module of the broker: its room, its file and its name."""
    for path in sources():
        room, file = room_of(path), shown(path)
        if path.stem != "__init__":
            yield room, file, path.stem
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                yield room, file, node.name


def is_banned(room: str, name: str) -> bool:
    words = words_of(name)
    alone = len(words) == 1 and words[0] in BANNED_ALONE
    return any((room, word) not in AT_HOME and (word in BANNED or alone) for word in words)


def glossary() -> list[str]:
    table = GLOSSARY.read_text().partition("## Words not used")[0]
    return re.findall(r"^\| ([a-z][\w -]*?) \|", table, re.MULTILINE)[1:]


def test_the_glossary_has_few_words_and_each_of_them_once() -> None:
    words = glossary()
    assert 20 <= len(words) <= WORDS_MAX
    assert len(set(words)) == len(words)


def test_the_glossary_names_every_word_that_is_refused() -> None:
    told = {word for name in re.findall(r"\w+", GLOSSARY.read_text()) for word in words_of(name)}
    assert BANNED - {"promise"} | BANNED_ALONE <= told


def test_no_class_or_module_has_a_name_of_our_own_invention() -> None:
    assert [(file, name) for room, file, name in names() if is_banned(room, name)] == []


def test_a_class_is_no_participle() -> None:
    found = {
        name
        for room, _, name in names()
        if room not in OF_THE_PROTOCOL and re.fullmatch(r"_?[A-Z][a-z]+ed", name)
    }
    assert found - {"Feed", "Need"} <= PARTICIPLES_LEFT


def test_names_are_taken_apart_by_words() -> None:
    assert words_of("SessionLine") == ["session", "line"]
    assert words_of("HTTPLine") == ["http", "line"]
    assert words_of("_send_via") == ["send", "via"]
    assert is_banned("broker", "SessionLine") and is_banned("broker", "Host")
    assert not is_banned("net", "Host") and not is_banned("cli", "pipeline")
