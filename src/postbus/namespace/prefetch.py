"""Does a receiver take more ahead than it can settle before the locks run out? (R-PRE-05)

The last message of a full prefetch buffer waits for all those before it, so it needs about
(credit + 1) times the time one takes to settle. Where that is longer than the lock, work is done
twice and messages drift into the dead-letter queue without anybody having failed.

Pure, with time passed in; one watch for each entity, fed by its links.
"""

from typing import Final

from postbus.model.times import Instant

WARN_EVERY_MS: Final = 3_600_000
_GENERATION_MS: Final = 300_000
# Bucket b holds times below 2^(b/2) ms: within 20 % of the truth, up to 25 minutes, in 42 integers.
_BUCKETS: Final = 42
_SAMPLES_MIN: Final = 20


class _Generation:
    __slots__ = ("counts", "credit", "total")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.total = 0
        self.credit = 0


class PrefetchWatch:
    """What links of one entity did in the last five to ten minutes, in constant memory."""

    __slots__ = ("_current", "_previous", "_turn_at", "_warned_at")

    def __init__(self, now: Instant) -> None:
        self._current = _Generation()
        self._previous = _Generation()
        self._turn_at = now + _GENERATION_MS
        self._warned_at: Instant | None = None

    def credited(self, credit: int) -> None:
        """A receiver has granted this much."""
        self._current.credit = max(self._current.credit, credit)

    def settled(self, elapsed_ms: int) -> None:
        """A message was settled this long after it was handed out."""
        current = self._current
        # bit_length of the square counts in half powers of two.
        bucket = (elapsed_ms * elapsed_ms).bit_length() if elapsed_ms > 0 else 0
        current.counts[bucket if bucket < _BUCKETS else _BUCKETS - 1] += 1
        current.total += 1

    def lock_ratio(self, lock_duration_ms: int, now: Instant) -> float:
        """Time the fullest buffer needs as a share of the lock; above 1 locks run out in it."""
        self._turn(now)
        credit = max(self._current.credit, self._previous.credit)
        return (credit + 1) * self._median_ms() / lock_duration_ms

    def findings(
        self, lock_duration_ms: int, default_ttl_ms: int | None, now: Instant
    ) -> list[str]:
        """What an operator should hear of, as sentences; none when all is well."""
        found = []
        ratio = self.lock_ratio(lock_duration_ms, now)
        if ratio > 1:
            credit = max(self._current.credit, self._previous.credit)
            found.append(
                f"receivers ask for up to {credit} messages and take about "
                f"{self._median_ms():.0f} ms to settle one: the last waits {ratio:.1f} times its "
                f"lock of {lock_duration_ms} ms (lower the prefetch count or raise the lock)"
            )
        if default_ttl_ms is not None and lock_duration_ms >= default_ttl_ms:
            found.append(
                f"the lock of {lock_duration_ms} ms is not shorter than the default time to live "
                f"of {default_ttl_ms} ms: an abandoned message has expired"
            )
        return found

    def may_warn(self, now: Instant) -> bool:
        """True once an hour; asking counts as warning."""
        if self._warned_at is not None and now < self._warned_at + WARN_EVERY_MS:
            return False
        self._warned_at = now
        return True

    def _turn(self, now: Instant) -> None:
        if now >= self._turn_at:
            idle = now >= self._turn_at + _GENERATION_MS
            self._previous = _Generation() if idle else self._current
            self._current = _Generation()
            self._turn_at = now + _GENERATION_MS

    def _median_ms(self) -> float:
        total = self._current.total + self._previous.total
        if total < _SAMPLES_MIN:
            return 0.0
        seen = 0
        for bucket in range(_BUCKETS):
            seen += self._current.counts[bucket] + self._previous.counts[bucket]
            if seen * 2 >= total:
                break
        return 0.0 if bucket == 0 else float(2.0 ** ((bucket - 0.5) / 2))
