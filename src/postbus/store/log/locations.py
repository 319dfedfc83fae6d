"""Where each batch lies, for every fragment of a log.

Batches at or above a fragment's tail are here: in memory while their segment is open, in the
segment's directory once it is sealed. Older batches that live bodies hold in place are rows of the
index (`pinned`).

The thread of the store changes it, and readers of the change feed look at it: each call holds the
lock. A batch is added when it is durable, never before.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from postbus.store.batch import HEADER_SIZE
from postbus.store.log.blocks import Block, Place, Run, unpack_block
from postbus.store.log.directory import block_bytes, is_block
from postbus.store.log.scan import whole_frames
from postbus.store.log.segments import Segments, name_of
from postbus.store.ports.journal_reader import Extent
from postbus.store.sqlite.damage import Damaged

BLOCKS_MAX: Final = 16
"""Blocks of sealed segments that are kept in memory."""


class Fragment:
    """One fragment: who may write it, and where it stands."""

    __slots__ = (
        *("begun_checkpoint", "begun_head", "born", "checkpoint", "epoch", "head", "refusals"),
        *("runs", "size", "tail", "unwritten"),
    )

    def __init__(self, epoch: int, checkpoint: int, tail: int, born: int) -> None:
        self.epoch = epoch
        self.checkpoint = checkpoint
        """Offset the index stands at."""
        self.tail = tail
        """Batches below it are out of retention."""
        self.born = born
        """Frames before this sequence have nothing of it: its id was used before, and dropped."""
        self.head = checkpoint
        """Offset after the newest durable record."""
        self.runs: list[Run] = []
        self.size = 0
        """Bytes of all batches from the tail on."""
        self.begun_head = checkpoint
        self.begun_checkpoint = checkpoint
        """Head and checkpoint once all commits under way are done."""
        self.unwritten: int | None = None
        """Base of the part whose records are durable, and whose checkpoint found no room."""
        self.refusals = 0
        """Checkpoints that found no room so far."""


class Locations:
    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.lock = threading.RLock()
        self.fragments: dict[int, Fragment] = {}
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        """Of sealed runs, by segment and position; the least recently used first."""

    def load(self, number: int, fragment: Fragment, runs: list[Run]) -> None:
        """A fragment as a start has found it. Damaged when a part of its journal is missing."""
        reached = fragment.tail
        for run in runs:
            if run.end <= fragment.tail:
                continue
            if run.first_base != reached and (fragment.runs or run.first_base > reached):
                raise _missing(number, reached, run.first_base)
            reached = run.end
            fragment.runs.append(run)
        if reached < fragment.checkpoint:
            raise _missing(number, reached, fragment.checkpoint)
        fragment.head = fragment.begun_head = reached
        self.fragments[number] = fragment
        for run in fragment.runs:
            self._show(fragment, run.segment, self._kept_size(fragment, run))

    def add(self, number: int, sequence: int, place: Place) -> Run | None:
        """A batch is durable. Returns its run, if it is the first of it."""
        with self.lock:
            fragment = self.fragments.get(number)
            if fragment is None or sequence < fragment.born:
                return None  # dropped meanwhile
            run = fragment.runs[-1] if fragment.runs else None
            is_new = run is None or run.segment != place.segment
            if run is None or is_new:
                run = Run(number, place.segment, place.base, place.at)
                fragment.runs.append(run)
            run.append(sequence, place.base, place.count, place.at, place.position, place.length)
            fragment.head = place.end
            self._show(fragment, place.segment, place.length)
            return run if is_new else None

    def set_tail(self, number: int, tail: int, size: int) -> None:
        """Batches below the tail left retention; the tail moved past so many bytes. Their segments
        are told by `hide`."""
        with self.lock:
            fragment = self.fragments[number]
            fragment.tail = tail
            fragment.size -= size
            while fragment.runs and fragment.runs[0].end <= tail:
                run = fragment.runs.pop(0)
                self._blocks.pop((run.segment, run.block_position), None)

    def hide(self, segment: int, size: int) -> None:
        """So many bytes of a segment cannot be read any more."""
        self._segments.by_number[segment].visible_bytes -= size

    def pin(self, segment: int, size: int) -> None:
        """So many visible bytes are held by live bodies only; negative when they are let go."""
        self._segments.by_number[segment].pinned_bytes += size

    def forget(self, number: int) -> None:
        """The fragment was dropped."""
        with self.lock:
            fragment = self.fragments.pop(number, None)
            if fragment is not None:
                for run in fragment.runs:
                    self.hide(run.segment, self._kept_size(fragment, run))

    def places(self, number: int, start: int) -> Iterator[Place]:
        """Batches from the batch that holds an offset on, from the tail on. For a caller that holds
        the lock, or is the thread of the store."""
        fragment = self.fragments.get(number)
        if fragment is None:
            return
        start = max(start, fragment.tail)
        first = bisect_right(fragment.runs, start, key=_end_of)
        for run in fragment.runs[first:]:
            block = self._block(run)
            for index in range(block.holding(start), len(block)):
                yield block.place(index, run.segment)

    def find(self, number: int, base: int) -> Place | None:
        """The batch with this base, from the tail on."""
        with self.lock:
            for place in self.places(number, base):
                return place if place.base == base else None
        return None

    def extent(self, number: int) -> Extent:
        with self.lock:
            fragment = self.fragments.get(number)
            if fragment is None:
                return Extent(0, 0, None, None, 0)
            oldest = next(self.places(number, fragment.tail), None)
            if oldest is None:
                return Extent(fragment.tail, fragment.head, None, None, 0)
            last_at = fragment.runs[-1].last_at
            return Extent(fragment.tail, fragment.head, oldest.at, last_at, fragment.size)

    def first_since(self, number: int, at: int) -> int:
        """The first offset from the tail on that was committed at this time or later."""
        with self.lock:
            fragment = self.fragments.get(number)
            if fragment is None:
                return 0
            # The time of a commit never goes back.
            first = bisect_left(fragment.runs, at, key=_last_at_of)
            if first == len(fragment.runs):
                return fragment.head
            block = self._block(fragment.runs[first])
            return block.bases[bisect_left(block.ats, at, block.holding(fragment.tail))]

    def _show(self, fragment: Fragment, segment: int, size: int) -> None:
        fragment.size += size
        self._segments.by_number[segment].visible_bytes += size

    def _kept_size(self, fragment: Fragment, run: Run) -> int:
        """Bytes of a run from the tail on."""
        if run.first_base >= fragment.tail:
            return run.size
        block = self._block(run)
        return sum(block.lengths[block.holding(fragment.tail) :])

    def _block(self, run: Run) -> Block:
        here = run.block
        if here is not None:
            return here
        key = run.segment, run.block_position
        with self.lock:
            block = self._blocks.pop(key, None)
            if block is None:
                data = self._segments.read(run.segment, run.block_position, block_bytes(run))
                block = unpack_block(data) if is_block(run, data) else self._scanned(run)
                if len(self._blocks) >= BLOCKS_MAX:
                    self._blocks.popitem(last=False)
            self._blocks[key] = block
            return block

    def _scanned(self, run: Run) -> Block:
        """The directory is damaged: the block, made anew from the frames."""
        block = Block()
        segment = self._segments.by_number[run.segment]
        for frame in whole_frames(self._segments, segment, segment.end_sequence):
            for position, header in frame.batches:
                number, _, base, at, count, length = header
                if number == run.fragment and run.first_base <= base < run.end:
                    block.append(base, count, at, position, length + HEADER_SIZE)
        if len(block) != run.count:
            raise Damaged(f"{name_of(run.segment)} has neither its directory nor all of its frames")
        return block


def _end_of(run: Run) -> int:
    return run.end


def _last_at_of(run: Run) -> int:
    return run.last_at


def _missing(fragment: int, start: int, end: int) -> Damaged:
    return Damaged(f"the journal of fragment {fragment} lacks offsets {start} to {end}")
