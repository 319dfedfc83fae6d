"""Lock tokens: never the same twice, and not to be told from others."""

from itertools import pairwise

from postbus.broker.fragment import Fragment
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.window import WindowLimits


def tokens(secret: int, count: int) -> list[bytes]:
    fragment = Fragment(Ledger(Layout(0, 0), 0, 0, b""), WindowLimits(), b"fragment", secret)
    return [fragment.next_token() for _ in range(count)]


def test_tokens_are_all_different_and_16_bytes_long() -> None:
    made = tokens(7, 10_000)
    assert len(set(made)) == 10_000
    assert {len(token) for token in made} == {16}


def test_who_has_seen_tokens_cannot_tell_others() -> None:
    """The proof in a token depends on the secret, and in no simple way on the tokens before."""
    made = [int.from_bytes(token[-5:], "big") for token in tokens(7, 100)]
    other = [int.from_bytes(token[-5:], "big") for token in tokens(8, 100)]
    assert not set(made) & set(other)
    steps = {second ^ first for first, second in pairwise(made)}
    assert len(steps) == 99
