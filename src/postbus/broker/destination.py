"""The entity that messages are forwarded to, as the engine knows it."""

from typing import Final, NamedTuple

from postbus.broker.message import Message
from postbus.model.partitioning import fragment_of, key_of


class Destination(NamedTuple):
    """The fragments of the entity, and which key of a message chooses among them (R-PART-19)."""

    fragments: tuple[int, ...]
    """Ids, by index."""
    finds_duplicates: bool = False
    """Then a message without another key has its message id for a key: copies must meet."""

    def fragment_for(self, message: Message, turn: int) -> int:
        """The fragment of a message. Without a key, messages take turns."""
        if len(self.fragments) == 1:
            return self.fragments[0]
        key = key_of(
            message.session_id, message.partition_key, message.message_id, self.finds_duplicates
        )
        return self.fragments[turn % len(self.fragments) if key is None else fragment_of(key)]


NOWHERE: Final = -1
"""The fragment of a message that is not on its way to any."""
