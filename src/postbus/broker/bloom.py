"""A filter over ids: it knows for certain that an id was never added, with few bits for each id.

A layer holds the ids of one segment of a history (`postbus.broker.duplicate_history`). The size of
a layer is a power of two, and an id's bits in it are the low bits of a number. So a layer can be
folded to half its size, or unfolded, without knowing the ids again. A folded layer takes more new
ids for known ids.
"""

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16
SIZE_MIN: Final = 1_024
BYTES_PER_ID: Final = 4
"""32 bits and 6 probes: of 40,000 ids that were never in a full layer, one is taken for known."""
PROBES_MAX: Final = 6
UNFOLDED: Final = 4
"""The factor by which a layer grows that was made too small."""

_WORDS: Final = struct.Struct("<QQ")
_PLACE_MASK: Final = (1 << 40) - 1


def digest_of(text: str) -> bytes:
    """The digest that a history stores for an id: so long that no two ids share it."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def places_of(digest: bytes) -> tuple[int, int]:
    """The first position of a digest in any layer, and the step to the next position."""
    first, step = _WORDS.unpack(digest)
    return first & _PLACE_MASK, (step & _PLACE_MASK) | 1


class Layer:
    """The ids of one segment."""

    __slots__ = ("_probes", "bits", "capacity", "mask")

    def __init__(self, size: int, capacity: int) -> None:
        """`size` in bytes, a power of two; `capacity` is the number of ids it was made for."""
        self.capacity = capacity
        self.bits = bytearray(size)
        self.mask = size * 8 - 1
        self._probes = max(2, min(PROBES_MAX, size * 8 // capacity // 2))

    @property
    def size(self) -> int:
        return len(self.bits)

    @property
    def bytes_per_id(self) -> float:
        return len(self.bits) / self.capacity

    def add(self, first: int, step: int) -> None:
        bits, mask, place = self.bits, self.mask, first
        for _ in range(self._probes):
            at = place & mask
            bits[at >> 3] |= 1 << (at & 7)
            place += step

    def add_all(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            first, step = places_of(digest)
            self.add(first, step)

    def may_have(self, first: int, step: int) -> bool:
        bits, mask, place = self.bits, self.mask, first
        for _ in range(self._probes):
            at = place & mask
            if not bits[at >> 3] >> (at & 7) & 1:
                return False
            place += step
        return True

    def fold(self) -> None:
        """Half the size, and twice as full."""
        half = len(self.bits) // 2
        low = int.from_bytes(self.bits[:half], "little")
        high = int.from_bytes(self.bits[half:], "little")
        self.bits = bytearray((low | high).to_bytes(half, "little"))
        self.mask = half * 8 - 1

    def unfold(self) -> None:
        """Make room for more ids. Each id in it then has several positions, as if it were more."""
        self.bits *= UNFOLDED
        self.mask = len(self.bits) * 8 - 1
        self.capacity *= UNFOLDED


def size_for(capacity: int) -> int:
    """Bytes of a layer for so many ids: a power of two."""
    return max(SIZE_MIN, 1 << (capacity * BYTES_PER_ID - 1).bit_length())
