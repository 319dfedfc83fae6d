"""The demands of every store on calls that write and read. A breach is a fault of the caller."""

from postbus.store.ports.journal import Part


def check(part: Part, head: int, checkpoint: int) -> None:
    """The part starts at the fragment's head, and its checkpoint goes forward, not past it."""
    if part.base != head:
        raise ValueError(f"fragment {part.lease.fragment} is at offset {head}, not at {part.base}")
    if bool(part.batch) != (part.count > 0):
        raise ValueError(f"{part.count} records in a batch of {len(part.batch)} bytes")
    if part.checkpoint is None:
        return
    offset = part.checkpoint.offset
    if not checkpoint <= offset <= head + part.count:
        raise ValueError(f"a checkpoint at {offset}, outside {checkpoint} to {head + part.count}")


def check_within(position: int, length: int, size: int) -> None:
    """So many bytes from a position on lie within a batch of this size."""
    if not 0 <= position <= position + length <= size:
        raise ValueError(f"{position}+{length} is outside a batch of {size} bytes")
