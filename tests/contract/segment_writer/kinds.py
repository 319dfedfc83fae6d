"""The two writers that pass the same tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postbus.store.log._segment_writer import NativeSegmentWriter
from postbus.store.log.segment_writer import (
    BYTES_MAX,
    FRAMES_MAX,
    PythonSegmentWriter,
    SegmentWriter,
    SystemFiles,
)


def native(
    durable: int = 0, frames_max: int = FRAMES_MAX, bytes_max: int = BYTES_MAX
) -> SegmentWriter:
    return NativeSegmentWriter(durable=durable, frames_max=frames_max, bytes_max=bytes_max)


def python(
    durable: int = 0, frames_max: int = FRAMES_MAX, bytes_max: int = BYTES_MAX
) -> SegmentWriter:
    return PythonSegmentWriter(
        SystemFiles(), durable=durable, frames_max=frames_max, bytes_max=bytes_max
    )


OpenWriter = Callable[..., SegmentWriter]
KINDS: Final[dict[str, OpenWriter]] = {"native": native, "python": python}
