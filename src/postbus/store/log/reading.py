"""Batches out of a log, for the thread of its store."""

from collections.abc import Iterator
from typing import Final

from postbus.store.batch import StoredBatch
from postbus.store.checks import check_within
from postbus.store.log import index_file
from postbus.store.log.blocks import Place
from postbus.store.log.locations import Locations
from postbus.store.log.segments import Segments
from postbus.store.sqlite.damage import Damaged, check_batch
from postbus.store.sqlite.database import Database

PINNED_AT_ONCE: Final = 256
"""Places of pinned batches that are asked for at once."""


class JournalReading:
    def __init__(self, database: Database, locations: Locations, segments: Segments) -> None:
        self._database = database
        self._locations = locations
        self._segments = segments

    def read(self, fragment: int, start: int, bytes_max: int) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        room = bytes_max
        for place in self._places(fragment, start):
            if found and place.length > room:
                break
            found.append(StoredBatch(place.base, self._whole(fragment, place)))
            room -= place.length
        return found

    def _places(self, fragment: int, start: int) -> Iterator[Place]:
        """Pinned batches below the tail, then all from the tail on."""
        known = self._locations.fragments.get(fragment)
        if known is None:
            return
        if start < known.tail:
            holding = index_file.pinned_holding(self._database, fragment, start)
            after = start if holding is None else holding.base
            while found := index_file.pinned_from(self._database, fragment, after, PINNED_AT_ONCE):
                yield from found
                after = found[-1].end
        yield from self._locations.places(fragment, start)

    def place_of(self, fragment: int, base: int) -> Place | None:
        """Where a batch lies that has not been trimmed."""
        known = self._locations.fragments.get(fragment)
        if known is None:
            return None
        if base < known.tail:
            return index_file.pinned_at(self._database, fragment, base)
        return self._locations.find(fragment, base)

    def read_batch(self, fragment: int, base: int) -> bytes | None:
        place = self.place_of(fragment, base)
        return None if place is None else self._whole(fragment, place)

    def read_slice(self, fragment: int, base: int, position: int, length: int) -> bytes | None:
        place = self.place_of(fragment, base)
        if place is None:
            return None
        check_within(position, length, place.length)
        data = self._segments.read(place.segment, place.position + position, length)
        if len(data) < length:
            raise Damaged(f"the batch at {base} of fragment {fragment} is cut short")
        return data

    def _whole(self, fragment: int, place: Place) -> bytes:
        data = self._segments.read(place.segment, place.position, place.length)
        check_batch(fragment, place.base, place.count, data)
        return data
