"""The messages that clients send. Each has a name, in its body; message ids come again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postbus.broker.message import NO_TTL, Message

if TYPE_CHECKING:
    from tests.simulation.transactions.model import TransactionModel

SESSIONS = ["", "a", "b", "c", "d", "e", "ä"]
SENT_MAX = 250
SENT_PLAINLY_MAX = 200


@dataclass(eq=False)
class SentMessage:
    """One message that a client sent, and what the client knows of it."""

    name: str
    message_id: str
    session_id: str | None
    queue: int
    """Where it is to go."""
    body: bytes
    due: int
    order: int
    """How many were sent before it."""
    sender: int | None = None
    """The link that it was sent on; None for messages whose order nobody has promised."""
    transaction: TransactionModel | None = None
    acknowledged: bool = False
    refused: bool = False
    revised: list[bytes] = field(default_factory=list)
    """Other bodies that it may have, since a client has asked for it."""


class SentMessages:
    """All that were ever sent."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._ids = chance.choice([3, 12, 60])
        """So few that most of them come again."""
        self.by_name: dict[str, SentMessage] = {}

    @property
    def enough(self) -> bool:
        """The others are for transactions, and for sending through another entity."""
        return len(self.by_name) >= SENT_PLAINLY_MAX

    @property
    def too_many(self) -> bool:
        return len(self.by_name) >= SENT_MAX

    def write(
        self, queue: int, in_session: bool, due: int = 0, ttl: int = NO_TTL
    ) -> tuple[SentMessage, Message]:
        chance = self._chance
        name = f"m{len(self.by_name)}"
        session_id = chance.choice(SESSIONS) if in_session or chance.random() < 0.2 else None
        message_id = f"i{chance.randrange(self._ids)}" if chance.random() < 0.95 else ""
        body = f"{name}|{'.' * chance.randrange(40)}".encode()
        sent = SentMessage(name, message_id, session_id, queue, body, due, len(self.by_name))
        self.by_name[name] = sent
        return sent, Message(body, message_id, session_id, ttl, due)


def name_of(body: bytes) -> str:
    return body.partition(b"|")[0].decode()
