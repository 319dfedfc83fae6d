"""Which sessions there are, page by page."""

from __future__ import annotations

from typing import Any

import pytest

from postbus.broker import session_list
from postbus.broker.index_pages import GroupsPage, LanePage, Pages
from postbus.broker.session_queue import with_sessions
from postbus.errors import InvalidArgument
from tests.support.sessions import SessionEngine


def with_states(engine: SessionEngine, *names: str) -> None:
    for name in names:
        session = engine.accept(name)
        engine.set_state(name, b"state of " + name.encode())
        engine.leave(session)
        engine.now += 1_000


def pages_of(engine: SessionEngine, top: int, updated_after: int | None = None) -> list[str]:
    found: list[str] = []
    while page := engine.listed(updated_after, len(found), top):
        assert len(page) <= top
        found += page
    return found


@pytest.mark.parametrize("in_index", [False, True])
def test_sessions_with_messages_or_state_are_listed_by_id(in_index: bool) -> None:
    engine = SessionEngine()
    for name in ("d", "b", "", "b"):
        engine.put(name, b"m")
    with_states(engine, "a", "d")
    engine.put("later", b"m", scheduled_at=engine.now + 1_000)
    engine.commit(checkpoint=in_index)
    assert engine.listed() == ["", "a", "b", "d"]
    assert engine.listed(skip=1, top=2) == ["a", "b"]
    assert engine.listed(skip=4) == []


@pytest.mark.parametrize("keep", ["nothing", "some"])
def test_sessions_that_only_the_index_still_knows_are_not_listed(keep: str) -> None:
    engine = SessionEngine()
    for name in ("a", "b", "c"):
        engine.put(name, b"1", b"2")
    with_states(engine, "c", "d")
    engine.commit(checkpoint=True)
    for name in ("a", "c"):
        engine.drain(engine.accept(name))
    engine.set_state("c", None)
    if keep == "some":
        engine.put("a", b"3")
    assert engine.listed() == (["a", "b", "d"] if keep == "some" else ["b", "d"])


@pytest.mark.parametrize("in_index", [False, True])
def test_sessions_whose_state_was_set_after_a_time_are_listed_in_that_order(in_index: bool) -> None:
    engine = SessionEngine()
    start = engine.now
    engine.put("only a message", b"m")
    with_states(engine, *"edcba")
    engine.commit(checkpoint=in_index)
    with_states(engine, "d")
    assert engine.listed(start - 1) == ["e", "c", "b", "a", "d"]
    assert engine.listed(start) == ["c", "b", "a", "d"]
    assert engine.listed(start + 2_500) == ["b", "a", "d"]
    assert engine.listed(start + 5_000) == []
    assert engine.listed(engine.now + 1_000_000) == []
    assert pages_of(engine, 2, start - 1) == ["e", "c", "b", "a", "d"]


def test_an_entity_without_sessions_in_it_lists_none() -> None:
    engine = SessionEngine()
    assert engine.listed() == []
    assert engine.listed(0) == []


@pytest.mark.interpreted_only
def test_pages_follow_one_another_without_being_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = SessionEngine()
    names = sorted(f"s{n}" for n in range(300))
    for name in names:
        engine.put(name, b"m")
    engine.commit(checkpoint=True)
    monkeypatch.setattr(session_list, "READ_AT_ONCE", 10)
    monkeypatch.setattr(session_list, "SKIPPED_MAX", 20)
    assert pages_of(engine, 7) == names
    with pytest.raises(InvalidArgument, match="page by page"):
        engine.listed(skip=33)
    assert engine.listed(skip=19, top=3) == names[19:22]


@pytest.mark.interpreted_only
@pytest.mark.parametrize("changed_only", [False, True])
def test_each_session_before_a_page_is_counted_once(
    changed_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many reads that takes: none of them begins again at the first session."""
    engine = SessionEngine()
    names = [f"s{n:03d}" for n in range(400)]
    with_states(engine, *names)
    engine.commit(checkpoint=True)
    for name in names[::40]:
        session = engine.accept(name)
        engine.set_state(name, None)
        engine.leave(session)
    left = [name for name in names if name not in names[::40]]
    since = 0 if changed_only else None
    monkeypatch.setattr(session_list, "READ_AT_ONCE", 10)
    steps = 0
    step = session_list.Listing._step

    def counting(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(*given)

    monkeypatch.setattr(session_list.Listing, "_step", counting)
    listing, pages = session_list.Listing(since, 300, 5), Pages()
    assert engine.paged(lambda pages: listing.read(engine.queue, pages), pages) == left[300:305]
    assert steps <= 4 * 40
    kept = [page for page in pages._loaded if isinstance(page, (GroupsPage, LanePage))]
    assert len(kept) <= 4


@pytest.mark.parametrize("changed_only", [False, True])
def test_pages_are_found_by_those_whose_places_nobody_remembers(changed_only: bool) -> None:
    engine = SessionEngine()
    names = [f"s{n:03d}" for n in range(300)]
    with_states(engine, *names)
    engine.commit(checkpoint=True)
    since = 0 if changed_only else None
    found: list[str] = []
    while page := engine.listed(since, len(found), 23):
        found += page
        with_sessions(engine.queue).all_sessions.listings.clear()
    assert found == names
    assert engine.listed(since, skip=300) == engine.listed(since, skip=1_000) == []


def test_a_page_that_cannot_be_is_refused() -> None:
    engine = SessionEngine()
    for skip, top in ((-1, 5), (0, 0)):
        with pytest.raises(InvalidArgument):
            engine.listed(skip=skip, top=top)
