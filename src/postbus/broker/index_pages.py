"""Pages: the engine's questions to the store when an answer is not in memory.

A call that needs pages returns `Need` and changes nothing. The runtime loads them and calls again
with `Pages`. Rows in a page are as of the last checkpoint, and the engine lays its delta over them.
So a page from before a later checkpoint is of no use, and is asked for again.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

from postbus.model.index_rows import Row, RowKey
from postbus.model.times import Instant


class LanePage(NamedTuple):
    """Rows of a lane from a number on, in order of number."""

    subqueue: int
    lane: int
    start: int
    limit: int


class GroupPage(NamedTuple):
    """Rows of one session in a lane, from a number on, in order of number."""

    subqueue: int
    lane: int
    group: bytes
    start: int
    limit: int


class GroupsPage(NamedTuple):
    """Sessions with rows in a lane, in order of their ids, behind `after`; None: from the start."""

    subqueue: int
    lane: int
    after: bytes | None
    limit: int


class DuePage(NamedTuple):
    """Rows of a lane that are due, earliest first."""

    subqueue: int
    lane: int
    until: Instant
    limit: int


class NextDue(NamedTuple):
    """The first time after `after` at which a row of a lane comes due."""

    subqueue: int
    lane: int
    after: Instant


class RowPage(NamedTuple):
    """Rows by key; a key without a row is left out."""

    keys: tuple[RowKey, ...]


class PinnedPage(NamedTuple):
    """Rows whose bodies keep old, mostly dead batches from being trimmed."""

    below: int
    limit: int


class BatchPage(NamedTuple):
    """A whole record batch: for the head of a queue, where its neighbours come next."""

    base: int


class BodyPage(NamedTuple):
    """A single body, without reading the rest of its batch."""

    base: int
    position: int
    length: int


class SeenPage(NamedTuple):
    """When these ids were last seen, in these parts of a history."""

    parts: tuple[int, ...]
    digests: tuple[bytes, ...]


class SeenSlice(NamedTuple):
    """The ids of a part behind an id, in order."""

    part: int
    after: bytes
    limit: int


Page = (
    LanePage
    | GroupPage
    | GroupsPage
    | DuePage
    | NextDue
    | RowPage
    | PinnedPage
    | BatchPage
    | BodyPage
    | SeenPage
    | SeenSlice
)
Loaded = list[Row] | list[bytes] | dict[bytes, Instant] | bytes | int | None


class Need(NamedTuple):
    """Load these and call again. Nothing has changed."""

    pages: tuple[Page, ...]


class Pages:
    """The pages that were loaded for one call, and the checkpoint they were loaded at."""

    __slots__ = ("_epoch", "_loaded", "_looked_in", "checkpoint", "seen")

    def __init__(self) -> None:
        self._epoch = -1
        self.checkpoint = -1
        self._loaded: dict[Page, Loaded] = {}
        self.seen: dict[bytes, Instant | None] = {}
        """Ids that were looked up, and when each was seen; None for never. Not by page: many
        requests are looked up at once."""
        self._looked_in: dict[bytes, tuple[int, ...]] = {}
        """The parts of the history that each id was looked up in. Mostly all ids of a page share
        these parts: a set for each id would take 40 MB if there are many parts."""

    def __contains__(self, page: Page) -> bool:
        return page in self._loaded

    def add(self, page: Page, loaded: Loaded) -> None:
        if isinstance(page, SeenPage):
            assert isinstance(loaded, dict)
            for digest in page.digests:
                before, at = self.seen.get(digest), loaded.get(digest)
                if before is None or (at is not None and at > before):
                    self.seen[digest] = at
                looked = self._looked_in.get(digest)
                self._looked_in[digest] = page.parts if looked is None else looked + page.parts
        else:
            self._loaded[page] = loaded

    def was_looked_for(self, digest: bytes, parts: Sequence[int]) -> bool:
        """Was an id looked up in all of these parts? A checkpoint may have put it into another part
        since the parts were chosen, and the answer is as new as the checkpoint."""
        looked = self._looked_in.get(digest, ())
        return all(part in looked for part in parts)

    def rows(self, page: LanePage | GroupPage | DuePage | RowPage | PinnedPage) -> list[Row]:
        rows = self._loaded[page]
        assert isinstance(rows, list)
        return cast(list[Row], rows)

    def groups(self, page: GroupsPage) -> list[bytes]:
        groups = self._loaded[page]
        assert isinstance(groups, list)
        return cast(list[bytes], groups)

    def digests(self, page: SeenSlice) -> list[bytes]:
        digests = self._loaded[page]
        assert isinstance(digests, list)
        return cast(list[bytes], digests)

    def body(self, page: BatchPage | BodyPage) -> bytes | None:
        body = self._loaded[page]
        assert body is None or isinstance(body, bytes)
        return body

    def instant(self, page: NextDue) -> Instant | None:
        at = self._loaded[page]
        assert at is None or isinstance(at, int)
        return at

    def bring_up_to(self, epoch: int, checkpoint: int) -> None:
        """Keep the pages that still hold. An engine that was loaded anew writes again from the end
        of the last good commit, so even a body may differ from what an earlier engine saw."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._loaded = {}
            self._forget_seen()
        elif checkpoint != self.checkpoint:
            self.forget_rows()

    def forget_rows(self) -> None:
        """Rows of an earlier checkpoint say nothing now; bodies never change."""
        self._forget_seen()
        self._loaded = {
            page: loaded
            for page, loaded in self._loaded.items()
            if isinstance(page, (BatchPage, BodyPage))
        }

    def _forget_seen(self) -> None:
        self.seen = {}
        self._looked_in = {}


def missing(pages: Pages, wanted: list[Page]) -> Need | None:
    """The pages that must be loaded first, if there are any."""
    absent = tuple(page for page in wanted if page not in pages)
    return Need(absent) if absent else None
