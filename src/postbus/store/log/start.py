"""A log and its index as a store finds them: fragments, segments, and where each batch lies."""

from postbus.model.times import Instant
from postbus.store.log import index_file
from postbus.store.log.files import Files
from postbus.store.log.locations import Fragment, Locations
from postbus.store.log.recovery import Recovery
from postbus.store.log.segments import Segments
from postbus.store.sqlite.damage import Damaged, check_numbers
from postbus.store.sqlite.database import Database

NEWEST_CHECKPOINT = "newest checkpoint"
_FRAGMENTS = "SELECT id, epoch, checkpoint, tail, born FROM fragment"


class Start:
    """Raises Damaged and OSError. All that it has found is durable when it returns."""

    def __init__(self, database: Database, files: Files, store: bytes, segments: Segments) -> None:
        self._database = database
        self._segments = segments
        self.locations = Locations(segments)
        self._fragments = self._load_fragments()
        sealed = index_file.sealed_segments(database)
        self.recovery = Recovery(files, self._segments, store, sealed, self._is_wanted)
        self.newest: Instant = 0
        """The latest time of any commit."""
        self._place()
        self.recovery.make_durable()

    def _load_fragments(self) -> dict[int, Fragment]:
        found = self._database.run(_FRAGMENTS)
        for row in found:
            check_numbers(row, "a fragment")
        return {number: Fragment(*fields) for number, *fields in found}

    def _is_wanted(self, number: int, sequence: int) -> bool:
        return number in self._fragments and sequence >= self._fragments[number].born

    def _place(self) -> None:
        if self._fragments and not self._segments.by_number:
            raise Damaged("the log is missing, and with it what was stored in it")
        written = self._database.get_meta(NEWEST_CHECKPOINT)
        if written is not None:
            check_numbers((written,), "the time of a commit")
            self.newest = written
        for number, fragment in self._fragments.items():
            runs = self.recovery.runs.get(number, [])
            self.locations.load(number, fragment, runs)
            self.newest = max(self.newest, *(run.last_at for run in runs), 0)
        for number, size in index_file.pinned_sizes(self._database).items():
            segment = self._segments.by_number.get(number)
            if segment is None:
                raise Damaged(f"segment {number} is missing, and live bodies with it")
            segment.visible_bytes += size
            segment.pinned_bytes += size
