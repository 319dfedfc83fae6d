"""Lock tokens: never the same twice, and not to be told from others."""

from itertools import pairwise

from postbus.broker.ledger import Layout, Ledger
from postbus.broker.shared_state import SharedState, is_in_session
from postbus.broker.window_budget import WindowBudget


def tokens(secret: int, count: int) -> list[bytes]:
    fragment = SharedState(Ledger(Layout(0, 0), 0, 0, b""), WindowBudget(), b"fragment", secret)
    return [fragment.next_token() for _ in range(count)]


def test_tokens_are_all_different_and_16_bytes_long() -> None:
    made = tokens(7, 10_000)
    assert len(set(made)) == 10_000
    assert {len(token) for token in made} == {16}


def test_a_token_tells_whether_its_message_is_of_a_session() -> None:
    fragment = SharedState(Ledger(Layout(0, 0), 0, 0, b""), WindowBudget(), b"fragment", 7)
    made = [fragment.next_token(in_session=n % 3 == 0) for n in range(100)]
    assert [is_in_session(token) for token in made] == [n % 3 == 0 for n in range(100)]
    assert {len(token) for token in made} == {16}
    assert len(set(made)) == 100
    assert not any(is_in_session(odd) for odd in (b"", b"short", bytes(16)))


def test_who_has_seen_tokens_cannot_tell_others() -> None:
    """The proof in a token depends on the secret, and in no simple way on the tokens before."""
    made = [int.from_bytes(token[-5:], "big") for token in tokens(7, 100)]
    other = [int.from_bytes(token[-5:], "big") for token in tokens(8, 100)]
    assert not set(made) & set(other)
    steps = {second ^ first for first, second in pairwise(made)}
    assert len(steps) == 99
