"""The directory at the end of a sealed segment: all blocks of it, and a summary of each.

    magic "PBLD" | fragments u32 | checksum u32 of the summaries | 4 bytes of nothing
    a summary for each fragment: fragment, first base, end, size, first time, last time,
        last sequence, position of its block: 8 bytes each; batches u32, checksum u32 of its block
    the blocks

The checksum begins with that of the segment, as those of frames do. A directory is derived from the
frames before it: where it is missing or damaged, the segment is scanned.
"""

import struct
from collections.abc import Mapping
from typing import Final

from isal.isal_zlib import crc32

from postbus.store.log.blocks import ENTRY_SIZE, Run

MAGIC: Final = b"PBLD"
_HEAD: Final = struct.Struct(">4sII4x")
_SUMMARY: Final = struct.Struct(">QQQQqqQQII")
HEAD_SIZE: Final = _HEAD.size


class DirectoryDamaged(Exception):
    """The segment has to be scanned."""


def directory_size(batches: int, fragments: int) -> int:
    return HEAD_SIZE + _SUMMARY.size * fragments + ENTRY_SIZE * batches


def pack_directory(seed: int, position: int, runs: Mapping[int, Run]) -> list[bytes]:
    """The pieces of the directory of these runs, by fragment, for a place in the segment. From then
    on the runs know where their blocks are."""
    summaries: list[bytes] = []
    blocks: list[bytes] = []
    at = position + HEAD_SIZE + _SUMMARY.size * len(runs)
    for fragment, run in runs.items():
        assert run.block is not None
        block = run.block.pack()
        run.block_position, run.block_checksum = at, crc32(block)
        summaries.append(
            _SUMMARY.pack(
                fragment,
                run.first_base,
                run.end,
                run.size,
                run.first_at,
                run.last_at,
                run.last_sequence,
                run.block_position,
                run.count,
                run.block_checksum,
            )
        )
        blocks.append(block)
        at += len(block)
    summary = b"".join(summaries)
    return [_HEAD.pack(MAGIC, len(runs), crc32(summary, seed)), summary, *blocks]


def summaries_size(head: bytes) -> int:
    """Bytes of the summaries that follow the head of a directory."""
    if len(head) < HEAD_SIZE or head[:4] != MAGIC:
        raise DirectoryDamaged("no directory is there")
    _, fragments, _ = _HEAD.unpack_from(head)
    return int(fragments) * _SUMMARY.size


def unpack_summaries(seed: int, segment: int, head: bytes, summaries: bytes) -> dict[int, Run]:
    """The runs of a sealed segment, by fragment."""
    _, fragments, checksum = _HEAD.unpack_from(head)
    if len(summaries) != fragments * _SUMMARY.size or crc32(summaries, seed) != checksum:
        raise DirectoryDamaged("its directory fails its checksum")
    runs: dict[int, Run] = {}
    for (
        fragment,
        first_base,
        end,
        size,
        first_at,
        last_at,
        sequence,
        position,
        count,
        checked,
    ) in _SUMMARY.iter_unpack(summaries):
        run = runs[fragment] = Run(fragment, segment, first_base, first_at)
        run.end, run.size, run.last_at, run.last_sequence = end, size, last_at, sequence
        run.count, run.block, run.block_position = count, None, position
        run.block_checksum = checked
    return runs


def block_bytes(run: Run) -> int:
    return run.count * ENTRY_SIZE


def is_block(run: Run, data: bytes) -> bool:
    """Are these the bytes of the run's block?"""
    return len(data) == block_bytes(run) and crc32(data) == run.block_checksum
