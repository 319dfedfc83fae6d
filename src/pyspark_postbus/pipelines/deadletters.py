"""Dead letters in bulk: send them back, repaired or as they are, or discard them (R-DLQ-08).

Moving a letter is a single step of the broker: it is in the dead-letter queue or in the target,
never in both and never in none. So a run that was killed is simply run again. A moved letter is no
longer among the dead letters, and a letter that was asked for twice is `not found` the second time.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row

from pyspark_postbus.client import Client
from pyspark_postbus.pipelines.edits import EDITS_MAX, Repairer, plan
from pyspark_postbus.pipelines.inputs import Address, address_of, parts_of

CHUNK_MESSAGES: Final = 1_000
CHUNK_BYTES: Final = EDITS_MAX
_EXAMPLES: Final = 20

Told = Callable[["Outcome"], None]


@dataclass
class Outcome:
    """How far a repair or a discard has come."""

    selected: int = 0
    """Letters that are to be moved."""
    left_alone: int = 0
    """Letters that the function chose to leave."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """How many letters were `moved`, `removed`, `not found`, `locked`, `refused`, `failed`."""
    examples: list[str] = field(default_factory=list)
    """The errors of the first few letters that could not be moved."""

    @property
    def done(self) -> int:
        return self.outcomes.total() - self.outcomes["failed"]

    def add(self, number: int, outcome: str, detail: str | None) -> None:
        self.outcomes[outcome] += 1
        if outcome in ("refused", "failed", "locked") and len(self.examples) < _EXAMPLES:
            self.examples.append(f"{number}: {outcome}: {detail or 'no reason was given'}")


@dataclass(frozen=True)
class Repair:
    """The chosen letters, and the plan for each: nothing has been changed yet."""

    address: Address
    planned: DataFrame
    """See `edits.PLANNED`; kept, so that the run does exactly what was shown."""
    outcome: Outcome
    size: int
    """Bytes of all edits."""

    def preview(self, count: int = 10) -> list[Row]:
        """The first few letters with their edits."""
        return self.planned.orderBy("sequenceNumber").limit(count).collect()

    def resubmit(self, connection: str, to: str | None = None, told: Told | None = None) -> Outcome:
        """Move the letters: back to where they came from, or to another entity."""

        def send(client: Client, path: str, rows: list[Row]) -> list[dict[str, Any]]:
            messages = [
                {"sequenceNumber": row.sequenceNumber, "edits": json.loads(row.edits)}
                for row in rows
            ]
            return client.resubmit(path, messages, to)

        return self._carry_out(connection, send, told)

    def discard(self, connection: str, told: Told | None = None) -> Outcome:
        """Remove the letters for good."""

        def send(client: Client, path: str, rows: list[Row]) -> list[dict[str, Any]]:
            return client.discard(path, [row.sequenceNumber for row in rows])

        return self._carry_out(connection, send, told)

    def _carry_out(
        self,
        connection: str,
        send: Callable[[Client, str, list[Row]], list[dict[str, Any]]],
        told: Told | None,
    ) -> Outcome:
        outcome = self.outcome
        wanted = self.planned.where("edits IS NOT NULL")
        parts = parts_of(outcome.selected, self.size)
        with Client(connection) as client:
            for path, rows in chunks(self.address, _in_order(wanted, parts)):
                for result in send(client, path, rows):
                    outcome.add(result["sequenceNumber"], result["outcome"], result.get("detail"))
                if told is not None:
                    told(outcome)
        self.planned.unpersist()
        return outcome


def prepare(
    letters: DataFrame,
    entity: str,
    where: str | None = None,
    edits: Mapping[str, str] | None = None,
    function: Repairer | None = None,
) -> Repair:
    """Choose dead letters by a SQL condition over their columns and work out how each is
    changed."""
    chosen = letters.where(where) if where else letters
    # On disk: a million letters do not fit in a laptop's memory, and they are looked at three
    # times.
    planned = plan(chosen, edits, function).persist(StorageLevel.DISK_ONLY)
    counts = planned.selectExpr(
        "count(edits) AS selected",
        "count_if(edits IS NULL AND problem IS NULL) AS left_alone",
        "count(problem) AS failed",
        "coalesce(sum(length(edits)), 0) AS size",
    ).collect()[0]
    outcome = Outcome(counts.selected, counts.left_alone)
    if counts.failed:
        outcome.outcomes["failed"] = counts.failed
        failed = planned.where("problem IS NOT NULL").limit(_EXAMPLES).collect()
        outcome.examples += [f"{row.sequenceNumber}: failed: {row.problem}" for row in failed]
    return Repair(address_of(entity), planned, outcome, counts.size)


def _in_order(planned: DataFrame, parts: int) -> Iterator[Row]:
    """By sequence number, a part in memory at a time: a target sees them as they were sent."""
    if parts == 1:
        return iter(planned.orderBy("subscription", "sequenceNumber").collect())
    ranged = planned.repartitionByRange(parts, "subscription", "sequenceNumber")
    return ranged.sortWithinPartitions("subscription", "sequenceNumber").toLocalIterator(
        prefetchPartitions=True
    )


def chunks(address: Address, rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows as they fit into requests, each to a single dead-letter queue."""
    waiting: list[Row] = []
    size = 0
    for row in rows:
        is_full = len(waiting) == CHUNK_MESSAGES or size + len(row.edits) > CHUNK_BYTES
        if waiting and (is_full or row.subscription != waiting[0].subscription):
            yield _path(address, waiting[0]), waiting
            waiting, size = [], 0
        waiting.append(row)
        size += len(row.edits)
    if waiting:
        yield _path(address, waiting[0]), waiting


def _path(address: Address, row: Row) -> str:
    return Address(address.entity, row.subscription or address.subscription).path
