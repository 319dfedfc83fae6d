"""Memory that is read into again and again.

The system has to clear a new buffer of some hundred kilobytes, page by page, and Python clears it
once more. A new buffer for each read took a tenth of the time to hand a batch on.
"""


class SpareBuffers:
    """Buffers of equal size. A caller need not give a buffer back: it is free again when the last
    view of it is gone, including views that a transport holds until it has sent them."""

    __slots__ = ("_count", "_kept", "_size")

    def __init__(self, size: int, count: int) -> None:
        """`count` are kept; if more are in use at once, the others are made and thrown away."""
        self._size = size
        self._count = count
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Room for this many bytes, with the content of its last use."""
        if size > self._size:
            return memoryview(bytearray(size))
        for kept in self._kept:
            if _is_free(kept):
                return memoryview(kept)[:size]
        made = bytearray(self._size)
        if len(self._kept) < self._count:
            self._kept.append(made)
        return memoryview(made)[:size]


def _is_free(buffer: bytearray) -> bool:
    # Python keeps an array from growing as long as there is a view of it, or a view of a view.
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
