"""What clients hand in: letters. Each has a name, in its body; message ids come again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postbus.broker.message import NO_TTL, Message

if TYPE_CHECKING:
    from tests.simulation.sessions.deals import Deal

WORK, ONCE, FAR = 21, 22, 23
"""A queue that requires sessions, one that finds duplicates, and one that others send to."""
NAMES = {WORK: "work", ONCE: "once", FAR: "far"}
SESSIONS = ["", "a", "b", "c", "d", "e", "ä"]
LETTERS_MAX = 120
SENT_PLAINLY_MAX = 70


@dataclass(eq=False)
class Letter:
    """One copy of one message."""

    name: str
    message_id: str
    session_id: str | None
    to: int
    body: bytes
    due: int
    sender: int | None = None
    """The link that it was sent on; None for those whose order nobody has promised."""
    place: int = 0
    """How many were sent before it."""
    deal: Deal | None = None
    acknowledged: bool = False
    refused: bool = False


class Letters:
    """All that were ever written."""

    def __init__(self, chance: random.Random, ids: int) -> None:
        self._chance = chance
        self._ids = ids
        """So few that most of them come again."""
        self.by_name: dict[str, Letter] = {}

    @property
    def enough(self) -> bool:
        """The others are for transactions, and for what is sent through another entity."""
        return len(self.by_name) >= SENT_PLAINLY_MAX

    @property
    def too_many(self) -> bool:
        return len(self.by_name) >= LETTERS_MAX

    def write(self, to: int, due: int = 0, ttl: int = NO_TTL) -> tuple[Letter, Message]:
        chance = self._chance
        name = f"m{len(self.by_name)}"
        session_id = chance.choice(SESSIONS) if to == WORK or chance.random() < 0.2 else None
        message_id = f"i{chance.randrange(self._ids)}" if chance.random() < 0.95 else ""
        body = f"{name}|{'.' * chance.randrange(40)}".encode()
        letter = Letter(name, message_id, session_id, to, body, due, place=len(self.by_name))
        self.by_name[name] = letter
        return letter, Message(body, message_id, session_id, ttl, due)


def name_of(body: bytes) -> str:
    return body.partition(b"|")[0].decode()
