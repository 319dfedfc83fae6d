"""The number of a subqueue: an owner, and a subqueue of that owner.

Owner 0 is the queue or topic of the fragment; the other owners are subscriptions of the topic. The
number is part of the stored format. It is a plain `int`, because every message has a number.
"""

from typing import Final

Owner = int
Subqueue = int

MAIN: Final = 0
DEAD_LETTER: Final = 1
TRANSFER_DEAD_LETTER: Final = 2

OWNER_BITS: Final = 2
"""The owner stands above these bits. Only code that computes on arrays of numbers needs to know."""
KIND_MASK: Final = (1 << OWNER_BITS) - 1


def subqueue_of(owner: Owner, kind: int = MAIN) -> Subqueue:
    """The subqueue of this owner that is MAIN, DEAD_LETTER or TRANSFER_DEAD_LETTER."""
    return owner << OWNER_BITS | kind


def owner_of(subqueue: Subqueue) -> Owner:
    return subqueue >> OWNER_BITS


def kind_of(subqueue: Subqueue) -> int:
    """MAIN, DEAD_LETTER or TRANSFER_DEAD_LETTER."""
    return subqueue & KIND_MASK


def subqueues_of(owner: Owner) -> range:
    """Every number that belongs to an owner, also the number that no subqueue uses so far."""
    first = owner << OWNER_BITS
    return range(first, first + KIND_MASK + 1)
