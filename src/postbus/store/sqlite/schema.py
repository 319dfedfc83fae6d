"""Tables of a store file.

journal   the truth: one row for each record batch, found by fragment and first offset
message   the index as of each fragment's checkpoint: one row for each message
duplicate ids that were seen as of that checkpoint, where duplicates are to be found
fragment  who may write, and where index, journal and retention stand
"""

from typing import Final

from postbus.store.ports.journal import FRAGMENT_MAX, OFFSET_MAX
from postbus.store.sqlite.database import Layout, name_folder

OFFSET_BITS: Final = OFFSET_MAX.bit_length()
"""A journal row's id is the fragment, followed by the offset in OFFSET_BITS bits."""

# An ordinary rowid table: batches are appended at the end of their fragment's range. Large values
# live on overflow pages that a scan of the small columns never touches. `total` counts the bytes
# written to the fragment up to this batch. So the bytes between two batches are known without a
# scan, and no row has to be updated with each commit.
JOURNAL: Final = """
CREATE TABLE journal (
    id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    at INTEGER NOT NULL,
    count INTEGER NOT NULL,
    total INTEGER NOT NULL,
    data BLOB NOT NULL
)"""

MESSAGE: Final = """
CREATE TABLE message (
    fragment INTEGER NOT NULL,
    subqueue INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    number INTEGER NOT NULL,
    wake_at INTEGER,
    base INTEGER NOT NULL,
    position INTEGER NOT NULL,
    length INTEGER NOT NULL,
    data BLOB NOT NULL,
    grp BLOB,
    PRIMARY KEY (fragment, subqueue, lane, number)
) WITHOUT ROWID"""

MESSAGE_DUE: Final = """
CREATE INDEX message_due ON message (fragment, subqueue, lane, wake_at, number)
WHERE wake_at IS NOT NULL"""

# Sessions, ordered by their ids, and the messages of each session in order.
MESSAGE_GROUP: Final = """
CREATE INDEX message_group ON message (fragment, subqueue, lane, grp, number)
WHERE grp IS NOT NULL"""

# Which batches hold live bodies, and how much of them: read by trim and copy-forward.
# Costs about 3 ms of the 10 that a checkpoint of 4,096 rows takes.
MESSAGE_BODY: Final = "CREATE INDEX message_body ON message (fragment, base, length)"

DUPLICATE: Final = """
CREATE TABLE duplicate (
    fragment INTEGER NOT NULL,
    part INTEGER NOT NULL,
    digest BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (fragment, part, digest)
) WITHOUT ROWID"""

# The head is not here: it is where the last batch ends, or the checkpoint when no batch is left.
FRAGMENT: Final = """
CREATE TABLE fragment (
    id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    broker TEXT NOT NULL,
    checkpoint INTEGER NOT NULL,
    tail INTEGER NOT NULL,
    state BLOB NOT NULL
)"""

STORE: Final = Layout(
    kind="store",
    version=4,
    tables=(JOURNAL, MESSAGE, MESSAGE_DUE, MESSAGE_GROUP, MESSAGE_BODY, DUPLICATE, FRAGMENT),
    upgrades={3: name_folder},
)


def first_id(fragment: int) -> int:
    """Journal row ids of a fragment start here; the offset is added."""
    if not 0 <= fragment <= FRAGMENT_MAX:
        raise ValueError(f"no journal has room for fragment {fragment}")
    return fragment << OFFSET_BITS
