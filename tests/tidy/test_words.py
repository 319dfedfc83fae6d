"""Words that do not belong in the repository."""

from __future__ import annotations

import re

from tests.tidy.tree import shown, sources, text_files

# In pieces, so that this file does not find itself.
FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.])/(?:"
    + "|".join(("wo" + "rk", "ro" + "ot"))
    + r")/",
    "a package registry": "|".join(
        (r"pypi\." + "org", "pythonhosted" + r"\.org", r"npmjs\." + "(?:org|com)")
    ),
}


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in text_files():
        text = path.read_text(errors="replace")
        for what, pattern in FORBIDDEN.items():
            if match := re.search(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{shown(path)}:{line}: {what}")
    assert found == []


def test_no_source_leaves_work_behind() -> None:
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    assert not {shown(path) for path in sources() if marks.search(path.read_text())}
