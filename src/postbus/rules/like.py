"""LIKE patterns: `%` is any run of characters, `_` any single character, all else stands for
itself.

A pattern is cut at its `%` signs. The first part and the last have fixed positions. Each part
between them takes the first position where it fits, and never gives it back: that leaves the most
for the parts after it. So a text is gone through once, and each step is paid for.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from postbus.model.rule import EXPRESSION_LENGTH_MAX

PATTERN_LENGTH_MAX: Final = EXPRESSION_LENGTH_MAX
"""Characters of a pattern; only a pattern that comes from a message can be longer."""
_FOUND_IN_A_STEP: Final = 8
"""Bits of the number of characters that are searched in the time of a step."""
_COMPARED_IN_A_STEP: Final = 11
"""The same for characters that are compared. If a text almost fits at each position, Python's
search compares all of it at each position."""

Spend = Callable[[int], None]
"""Told of each step; raises when there have been too many."""


class _Part:
    """The pattern between two `%`: texts that must be at their positions, anything elsewhere."""

    __slots__ = ("_anchor", "_others", "length")

    def __init__(self, texts: list[tuple[int, str]], length: int) -> None:
        self.length = length
        self._anchor = max(texts, key=_length_of, default=None)
        self._others = [each for each in texts if each is not self._anchor]

    def fits(self, text: str, at: int, spend: Spend) -> bool:
        anchor = self._anchor
        if anchor is not None and not text.startswith(anchor[1], at + anchor[0]):
            return False
        return self._others_fit(text, at, spend)

    def find(self, text: str, start: int, end: int, spend: Spend) -> int:
        """The first place at which it fits between these two; -1 for none."""
        anchor = self._anchor
        if anchor is None:
            return start if start + self.length <= end else -1
        offset, wanted = anchor
        last = end - self.length + offset + len(wanted)
        while True:
            found = text.find(wanted, start + offset, last)
            searched = (last if found < 0 else found) - start
            compared = searched * len(wanted)
            spend(1 + (searched >> _FOUND_IN_A_STEP) + (compared >> _COMPARED_IN_A_STEP))
            if found < 0:
                return -1
            start = found - offset
            if self._others_fit(text, start, spend):
                return start
            start += 1

    def _others_fit(self, text: str, at: int, spend: Spend) -> bool:
        fitting = 0
        for offset, wanted in self._others:
            if not text.startswith(wanted, at + offset):
                break
            fitting += 1
        if fitting:
            spend(fitting)
        return fitting == len(self._others)


class Pattern:
    """A pattern, taken apart."""

    __slots__ = ("_first", "_last", "_length", "_middle")

    def __init__(self, parts: list[_Part]) -> None:
        self._first, *others = parts
        self._last = others.pop() if others else None
        self._middle = [part for part in others if part.length]
        self._length = sum(part.length for part in parts)

    def matches(self, text: str, spend: Spend) -> bool:
        """Does the whole text match?"""
        first, last = self._first, self._last
        if last is None:
            return len(text) == self._length and first.fits(text, 0, spend)
        if len(text) < self._length or not first.fits(text, 0, spend):
            return False
        end = len(text) - last.length
        if not last.fits(text, end, spend):
            return False
        start = first.length
        for part in self._middle:
            found = part.find(text, start, end, spend)
            if found < 0:
                return False
            start = found + part.length
        return True


class _Nothing(Pattern):
    """A pattern that ends with its escape character: nothing is escaped, and nothing matches."""

    def __init__(self) -> None:
        super().__init__([_Part([], 0)])

    def matches(self, text: str, spend: Spend) -> bool:
        return False


@lru_cache(512)
def like_pattern(pattern: str, escape: str | None = None) -> Pattern:
    """The character after `escape` stands for itself."""
    parts: list[_Part] = []
    texts: list[tuple[int, str]] = []
    run: list[str] = []
    length = 0

    def end_run() -> None:
        if run:
            texts.append((length - len(run), "".join(run)))
            run.clear()

    for kind, character in _characters(pattern, escape):
        if kind == _END:
            return _Nothing()
        if kind == _RUN:
            end_run()
            parts.append(_Part(texts, length))
            texts, length = [], 0
        elif kind == _ANY:
            end_run()
            length += 1
        else:
            run.append(character)
            length += 1
    end_run()
    parts.append(_Part(texts, length))
    return Pattern(parts)


_ITSELF: Final = 0
_ANY: Final = 1
_RUN: Final = 2
_END: Final = 3
_WILD: Final = {"_": _ANY, "%": _RUN}


def _characters(pattern: str, escape: str | None) -> Iterator[tuple[int, str]]:
    """Each character, and its meaning."""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            yield (_END, "") if following is None else (_ITSELF, following)
        else:
            yield _WILD.get(character, _ITSELF), character


def _length_of(text: tuple[int, str]) -> int:
    return len(text[1])
