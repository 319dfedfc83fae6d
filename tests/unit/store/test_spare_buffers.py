"""Memory that is read into again, but never while somebody still looks at it."""

from __future__ import annotations

from postbus.store.sqlite.spare_buffers import SpareBuffers


def test_a_buffer_is_used_again_when_nobody_has_a_view_of_it() -> None:
    # given
    spare = SpareBuffers(100, 2)
    first = spare.take(50)
    first[:] = b"a" * 50

    # when
    del first

    # then
    assert spare.take(10) == b"a" * 10


def test_a_view_of_a_view_keeps_it_from_being_used() -> None:
    # given what a transport does: it holds on to a part of what it was given
    spare = SpareBuffers(100, 2)
    given = spare.take(50)
    given[:] = b"a" * 50
    held = memoryview(given)[20:]

    # when
    del given
    other = spare.take(50)
    other[:] = b"b" * 50

    # then
    assert held == b"a" * 30


def test_more_are_given_out_than_are_kept() -> None:
    # given
    spare = SpareBuffers(10, 2)

    # when
    views = [spare.take(10) for _ in range(5)]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * 10

    # then
    assert [bytes(view) for view in views] == [bytes([number]) * 10 for number in range(5)]


def test_one_that_is_larger_is_made_for_the_occasion() -> None:
    spare = SpareBuffers(10, 2)
    assert len(spare.take(11)) == 11
    assert bytes(spare.take(10)) == bytes(10)
