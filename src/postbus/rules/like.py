"""LIKE patterns: `%` is any run of characters, `_` any single one, all else stands for itself.

A pattern becomes a regular expression whose runs give back nothing once what follows them was
found, so the work grows with text times pattern and not with the number of ways to match. That is
right because the first place where a part fits leaves the most for the parts after it.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from postbus.model.rule import EXPRESSION_LENGTH_MAX

PATTERN_LENGTH_MAX: Final = EXPRESSION_LENGTH_MAX
"""Characters of a pattern; only one that comes from a message can be longer."""

Matcher = Callable[[str], object]
"""Gives None for a text that does not match."""

_NOTHING: Final = r"(?!)"


@lru_cache(512)
def like_matcher(pattern: str, escape: str | None = None) -> Matcher:
    """A function that matches whole texts. The character after `escape` stands for itself."""
    first, *others = _parts(pattern, escape)
    expression = first
    if others:
        *middle, last = others
        expression += "".join(f"(?>.*?{part})" for part in middle if part) + f".*{last}"
    return re.compile(expression, re.DOTALL).fullmatch


def _parts(pattern: str, escape: str | None) -> list[str]:
    """The regular expressions between the `%` signs."""
    parts = [""]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            # Nothing is escaped at the very end, and nothing matches that.
            following = next(characters, None)
            parts[-1] += _NOTHING if following is None else re.escape(following)
        elif character == "%":
            parts.append("")
        elif character == "_":
            parts[-1] += "."
        else:
            parts[-1] += re.escape(character)
    return parts
