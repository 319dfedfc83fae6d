"""Decide a batch, make it durable, only then answer.

One Runtime for each store. A turn takes what has arrived since the last one, or a good part of it,
lets the engines decide, and writes one transaction; every output of the turn (answers, refusals,
deliveries) leaves after that commit, in order. What arrives while a commit is under way is the next
batch. When that has become large it is decided ahead, on top of what is not durable yet, and
written behind it: its outputs wait for both commits, and if the first one fails so does the second.
There is no timer in this, so a lone client waits for no one and a busy store commits many messages
at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final

import structlog

from postbus.errors import InternalError, ServiceBusError, StoreFull, StoreUnavailable
from postbus.model.rows import Checkpoint
from postbus.model.times import NEVER, Instant
from postbus.observe.meters import StoreMeter
from postbus.observe.turns import ENGINE
from postbus.runtime.commits import (
    NO_ROOM,
    Commit,
    PreparedPart,
    note_committed,
    packed,
    refusal_of,
    refuse,
    safely,
)
from postbus.runtime.dispatch import serve
from postbus.runtime.engine_cache import EngineCache, Retired
from postbus.runtime.fragment import LoadedFragment, Output
from postbus.runtime.loading import Loader
from postbus.runtime.reads import Reader
from postbus.runtime.requests import Request
from postbus.runtime.store_thread import StoreThread
from postbus.store import batch
from postbus.store.ports.journal import Part
from postbus.store.ports.store import Store

REQUESTS_PER_TURN: Final = 128
"""A turn takes so many, or an eighth of what waits if that is more. One client's whole window in
one turn would leave this thread idle for each commit, and the disk for each turn; three small
commits are under way while the fourth is decided. Measured with a window of 500, against turns that
take everything: 7 % more; with turns of 256, 3 % less."""
BYTES_PER_TURN: Final = 4 << 20
PACKED_HERE_BYTES: Final = 2 << 20
"""Larger batches are packed on the store's thread. To copy and sum that much takes long, but not
the interpreter's lock, which is let go of where the pieces have a megabyte."""
TOIL_PER_TURN: Final = 24_576
"""What a turn takes of `SharedState.toil`, about a microsecond each, before it leaves the rest to
the next turn: everybody else waits as long."""
QUEUED_REQUESTS_MAX: Final = 20_000
QUEUED_BYTES_MAX: Final = 64 << 20
AHEAD_REQUESTS_MIN: Final = 8
"""Requests that are worth a turn while a commit is under way, and half as many as that one has.
Fewer wait for it and make the next batch larger: a commit costs as much as several messages."""
AHEAD_REQUESTS_MAX: Final = REQUESTS_PER_TURN // 2
COMMITS_MAX: Final = 3
LOAD_AGAIN_MS: Final = 10_000
"""An engine that was thrown away may have had work of its own: it is loaded again after this."""

log = structlog.get_logger()


class Runtime:
    """Runs the engines of the fragments in one store."""

    def __init__(
        self,
        store: Store,
        thread: StoreThread,
        clock: Callable[[], Instant],
        loader: Loader,
        meter: StoreMeter,
        engine_cache: EngineCache | None = None,
    ) -> None:
        self._store = store
        self._writer = thread
        self._clock = clock
        self._loader = loader
        self._meter = meter
        self._engine_cache = EngineCache() if engine_cache is None else engine_cache
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Request] = deque()
        self._waiting = 0
        """Requests that wait for an engine to be loaded."""
        self._queued_bytes = 0
        """Of both."""
        self._awake: dict[LoadedFragment, None] = {}
        self._scheduled = False
        self._commits: deque[Commit] = deque()
        """Under way, the oldest first."""
        self._ahead_at = 0
        """Requests in the inbox that are worth a turn while the last of them is under way."""
        self._exclusive = False
        """Nothing may be decided until they are back: a checkpoint is among them, or is due, or an
        answer that must show what was decided and no more."""
        self._resume: list[Callable[[], None]] = []
        self._reader = Reader(loader, self._take_back, self.wake)
        self._loading = 0
        self._stopping = False

    # -- what arrives ----------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Ask something of a fragment."""
        request.fragment.used = True
        self.attend(request)

    def attend(self, request: Request) -> None:
        """Have something done that nobody asked for: it does not count as use."""
        self._inbox.append(request)
        self._queued_bytes += request.size
        self._schedule()

    def wake(self, fragment: LoadedFragment) -> None:
        """Something changed that may let messages go out: credit, a timer."""
        self._awake[fragment] = None
        self._schedule()

    @property
    def congested(self) -> bool:
        """More waits than should: stop reading from those who send."""
        reader = self._reader
        queued = len(self._inbox) + self._waiting + reader.held_count
        queued_bytes = self._queued_bytes + reader.held_bytes
        return queued > QUEUED_REQUESTS_MAX or queued_bytes > QUEUED_BYTES_MAX

    @property
    def idle(self) -> bool:
        """Nothing is waiting, nothing is being read and nothing written."""
        reading = self._loading or self._reader.busy
        return not (self._inbox or self._commits or self._scheduled or reading)

    def when_relieved(self, resume: Callable[[], None]) -> None:
        """Call back once when the congestion is over."""
        self._resume.append(resume)

    def _schedule(self) -> None:
        if self._scheduled or (
            self._commits and (len(self._inbox) < self._ahead_at or self._must_wait)
        ):
            return
        self._scheduled = True
        self._loop.call_soon(self._meter.turns.timed, ENGINE, self._turn)

    @property
    def _must_wait(self) -> bool:
        """May nothing be decided before a commit is back?"""
        return bool(self._commits) and (self._exclusive or len(self._commits) >= COMMITS_MAX)

    # -- one turn --------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        if self._must_wait:
            # Asked for within the very turn that has put it under way, by one who was refused.
            return
        now = self._clock()
        requests: list[Request] = []
        outputs: list[Output] = []
        fragments = self._decide(now, requests, outputs)
        written: list[PreparedPart] = []
        for fragment in fragments:
            try:
                chores = serve(fragment, now, outputs)
                if not self._stopping:  # the next start goes on with them
                    self._inbox.extend(chores)
                part = self._written(fragment, now)
            except Exception as error:  # as in _decide
                self._fault(fragment, error, requests, outputs)
            else:
                if part is not None:
                    written.append(part)
                if fragment.waiting_subqueues:
                    self._awake[fragment] = None  # there is more to hand out
        if written:
            self._commit(written, fragments, requests, outputs)
        elif self._commits:
            # What it gives out may not be durable yet.
            self._commits[-1].join(fragments, requests, outputs)
        else:
            self._exclusive = False
            self._finish(fragments, outputs)
        self._reader.read()
        if self._inbox:
            self._schedule()

    def _decide(
        self, now: Instant, decided: list[Request], outputs: list[Output]
    ) -> dict[LoadedFragment, None]:
        """Let the engines answer what is in the inbox; returns the fragments that took part."""
        fragments, self._awake = self._awake, {}
        for fragment in fragments:
            if fragment.engine is None and fragment.gone is None and fragment.waiting is None:
                self._load(fragment, [])
        inbox = self._inbox
        bytes_left, toil_left = BYTES_PER_TURN, TOIL_PER_TURN
        full = None if self._store.has_room else StoreFull(NO_ROOM)
        for _ in range(min(len(inbox), max(REQUESTS_PER_TURN, len(inbox) // 8))):
            if bytes_left <= 0 or toil_left <= 0:
                break
            request = inbox.popleft()
            self._queued_bytes -= request.size
            fragment = request.fragment
            refusal = fragment.gone or (full if full is not None and request.grows else None)
            if refusal is not None:
                outputs.append((fragment, partial(request.refuse, refusal)))
                decided.append(request)  # or a commit that fails would leave it without an answer
                continue
            engine = fragment.engine
            if engine is None:
                self._await_engine(request)
                continue
            fragments[fragment] = None
            if fragment.held is not None and self._reader.hold(fragment.held, request, engine, now):
                continue
            if request.pages is not None and fragment.lease is not None:
                request.pages.bring_up_to(fragment.lease.epoch, engine.ledger.checkpoint)
            try:
                need = request.decide(engine, now)
            except ServiceBusError as error:
                outputs.append((fragment, partial(request.refuse, error)))
            except Exception as error:  # a fault of ours, or of the disk's: stop the fragment
                decided.append(request)
                self._fault(fragment, error, decided, outputs)
                continue
            else:
                if need is not None:
                    self._reader.want(request, need, engine)
                    continue
                bytes_left -= request.size
                if request.exclusive:
                    self._exclusive = True
                outputs.append((fragment, request.answer))
            toil_left -= engine.shared.take_toil()
            decided.append(request)
        self._relieve()
        return {fragment: None for fragment in fragments if fragment.engine is not None}

    def _await_engine(self, request: Request) -> None:
        fragment = request.fragment
        self._waiting += 1
        self._queued_bytes += request.size
        if fragment.waiting is None:
            self._load(fragment, [request])
        else:
            fragment.waiting.append(request)

    def _relieve(self) -> None:
        if self._resume and not self.congested:
            resume, self._resume = self._resume, []
            for call in resume:
                self._loop.call_soon(call)

    # -- commit ----------------------------------------------------------------------------

    def _written(self, fragment: LoadedFragment, now: Instant) -> PreparedPart | None:
        engine, lease = fragment.engine, fragment.lease
        if engine is None or lease is None:
            return None
        checkpoint: Checkpoint | None = None
        if fragment.checkpoint_due(engine):
            # It sums up all there is, so it must be of nothing that could still fail, and nothing
            # may change before it is written.
            self._exclusive = True
            if self._commits:
                self._awake[fragment] = None
            else:
                checkpoint = fragment.make_checkpoint(engine)
        ledger = engine.ledger
        if not ledger.pending and checkpoint is None:
            return None
        base, records, data = ledger.head, ledger.seal(), b""
        if records and sum(map(len, records)) < PACKED_HERE_BYTES:
            # Not on the store's thread: that would ask for the interpreter's lock while this one
            # goes on, and the disk would be idle until it is had.
            data, _ = batch.pack(fragment.id, lease.epoch, base, now, records)
        part = Part(lease, base, len(records), now, data, checkpoint)
        return PreparedPart(fragment, engine, records, part)

    def _commit(
        self,
        written: list[PreparedPart],
        fragments: dict[LoadedFragment, None],
        requests: list[Request],
        outputs: list[Output],
    ) -> None:
        commit = Commit(written, fragments, requests, outputs)
        self._commits.append(commit)
        worth = max(AHEAD_REQUESTS_MIN, len(requests) // 2)
        self._ahead_at = min(worth, AHEAD_REQUESTS_MAX)
        self._writer.submit(
            partial(self._write_all, written),
            partial(self._committed, commit),
            partial(self._not_committed, commit),
        )

    def _committed(self, commit: Commit, passed: frozenset[int]) -> None:
        """The store has it, but for the fragments that another broker has taken over."""
        self._returned(commit)
        records = sum([each.part.count for each in commit.written])
        size = sum([len(each.part.batch) for each in commit.written])
        self._meter.committed(perf_counter() - commit.started, records, size)
        fenced = [part for part in commit.written if part.fragment.id not in passed]
        if fenced:
            self._lost(fenced, commit, StoreUnavailable("Another broker took the entity over."))
        for part in commit.written:
            if part.fragment.id in passed:
                note_committed(part)
        self._finish(commit.fragments, commit.outputs)

    def _not_committed(self, commit: Commit, error: BaseException) -> None:
        """The store refused it, or broke."""
        self._returned(commit)
        self._meter.failures += 1
        log.error("commit failed", error=str(error), fragments=len(commit.written))
        self._lost(commit.written, commit, refusal_of(error))
        self._finish(commit.fragments, commit.outputs)

    def _returned(self, commit: Commit) -> None:
        assert self._commits[0] is commit, "a store answers in order"
        self._commits.popleft()
        if not self._commits:
            self._exclusive = False

    def _lost(self, parts: list[PreparedPart], commit: Commit, refusal: ServiceBusError) -> None:
        """These parts are not durable, nor is what was decided on top of them since."""
        for each in (commit, *self._commits):
            refuse({part.fragment for part in parts}, each.requests, each.outputs, refusal)
        for part in parts:
            if part.fragment.engine is part.engine:  # and not thrown away already, and loaded again
                self.discard(part.fragment, refusal)

    def _write_all(self, written: list[PreparedPart]) -> frozenset[int]:
        """On the store's thread."""
        for place, each in enumerate(written):
            if each.records and not each.part.batch:
                written[place] = packed(each)
        return self._write([each.part for each in written])

    def _write(self, parts: list[Part]) -> frozenset[int]:
        """On the store's thread."""
        passed = self._store.commit(parts)
        for part in parts:
            if part.checkpoint is not None and part.lease.fragment in passed:
                self._loader.checkpoints[part.lease.fragment] = part.checkpoint.offset
        return passed

    def discard(self, fragment: LoadedFragment, refusal: ServiceBusError) -> None:
        """Forget the engine; the next use loads it from the store."""
        fragment.engine = fragment.lease = fragment.counts = None
        self._engine_cache.dropped(fragment)
        fragment.chores.clear()
        if fragment.timer is not None:
            fragment.timer.cancel()
            fragment.timer = None
        now = self._clock()
        # What cannot be read stays so until somebody has seen to it.
        lasting = fragment.gone is not None or isinstance(refusal, InternalError)
        fragment.wakes_at = NEVER if lasting else now + LOAD_AGAIN_MS
        self._arm(fragment, now)
        lost, fragment.on_lost = fragment.on_lost, {}
        for call in lost:
            safely(fragment, partial(call, refusal))

    def _finish(self, fragments: dict[LoadedFragment, None], outputs: list[Output]) -> None:
        for fragment, output in outputs:
            safely(fragment, output)
        now = self._clock()  # the commit may have taken long, and timers count from here
        for fragment in fragments:
            self._arm(fragment, now)
        if self._engine_cache.crowded:
            self._retired(self._engine_cache.make_room(now), now)
        if self._inbox or self._awake:
            self._schedule()

    def _fault(
        self,
        fragment: LoadedFragment,
        error: Exception,
        requests: list[Request],
        outputs: list[Output],
    ) -> None:
        """The fragment cannot go on: nothing it decided in this turn has happened."""
        log.error("fragment stopped", entity=fragment.name, fragment=fragment.id, exc_info=error)
        refusal = InternalError(f"The messaging entity '{fragment.name}' cannot be read.")
        # What was decided before it is on its way to the disk, and stands.
        refuse({fragment}, requests, outputs, refusal)
        self.discard(fragment, refusal)

    # -- time ------------------------------------------------------------------------------

    def _arm(self, fragment: LoadedFragment, now: Instant) -> None:
        """Wake the fragment when its engine next wants to be called."""
        engine = fragment.engine
        deadline = fragment.wakes_at if engine is None else engine.next_deadline()
        if self._stopping or (engine is None and deadline >= NEVER):
            return
        if fragment.timer is not None:
            if fragment.timer_at <= deadline and not fragment.timer.cancelled():
                return
            fragment.timer.cancel()
        delay = min(max(deadline - now, 1), 3_600_000)
        fragment.timer_at = now + delay
        fragment.timer = self._loop.call_later(delay / 1000, self._ring, fragment)

    def set_timer_again(self, fragment: LoadedFragment) -> None:
        """The clock was set, and a timer does not hear of that."""
        if fragment.timer is not None:
            fragment.timer.cancel()
            fragment.timer = None
            self._arm(fragment, self._clock())

    def _ring(self, fragment: LoadedFragment) -> None:
        fragment.timer = None
        if self._stopping or fragment.gone is not None:
            return
        now = self._clock()
        if fragment.engine is not None or fragment.wakes_at <= now:
            self.wake(fragment)
        else:
            self._arm(fragment, now)

    def survey(self, fragments: list[LoadedFragment]) -> None:
        """Learn when fragments have work of their own, and what they hold, without loading them. A
        fragment whose index is behind its journal knows neither: it is loaded."""

        def surveyed(error: ServiceBusError | None) -> None:
            for fragment in fragments:
                self._arm(fragment, self._clock())
            if error is not None and not self._stopping:
                self._loop.call_later(LOAD_AGAIN_MS / 1000, self.survey, fragments)

        self._loader.survey(fragments, surveyed)

    # -- room ------------------------------------------------------------------------------

    @property
    def loaded(self) -> int:
        """Engines in memory."""
        return len(self._engine_cache)

    def forget_idle(self) -> None:
        """Forget the engines that nobody has used for a while."""
        now = self._clock()
        self._retired(self._engine_cache.age(now), now)

    def _retired(self, retired: Retired, now: Instant) -> None:
        for fragment in retired.forgotten:
            self._awake.pop(fragment, None)
            self._arm(fragment, now)
        for fragment in retired.unwritten:
            fragment.checkpoint_wanted = True
            self.wake(fragment)

    # -- the end ---------------------------------------------------------------------------

    async def stop(self, fragments: list[LoadedFragment]) -> None:
        """Finish what is under way, write checkpoints, give the fragments up."""
        self._stopping = True
        for fragment in fragments:
            await self.quiet()
            engine, lease = fragment.engine, fragment.lease
            if engine is None or lease is None:
                continue
            ledger = engine.ledger
            try:
                if ledger.head > ledger.checkpoint:
                    checkpoint = ledger.make_checkpoint()
                    part = Part(lease, ledger.head, 0, self._clock(), b"", checkpoint)
                    await self._writer.run(partial(self._write, [part]))
                await self._writer.run(partial(self._store.release, lease))
            except ServiceBusError as error:
                # Nothing is lost by it: the next start replays more.
                log.warning("fragment not released", entity=fragment.name, error=str(error))
            fragment.engine = fragment.lease = None
            self._engine_cache.dropped(fragment)

    async def quiet(self) -> None:
        """Wait until everything that has arrived is answered."""
        while not self.idle:
            await asyncio.sleep(0.002)

    # -- loading ---------------------------------------------------------------------------

    def _load(self, fragment: LoadedFragment, waiting: list[Request]) -> None:
        """The engine is not here, and somebody has use for it: fetch it, and let them wait."""
        fragment.waiting = waiting
        self._loading += 1

        def loaded(error: ServiceBusError | None) -> None:
            self._loading -= 1
            self._waiting -= len(waiting)
            fragment.waiting = None
            if error is not None:
                self._queued_bytes -= sum([each.size for each in waiting])
                for each in waiting:
                    safely(fragment, partial(each.refuse, error))
                self.discard(fragment, error)
                self._relieve()
                return
            self._engine_cache.loaded(fragment, self._clock())
            fragment.wake_all()
            self._inbox.extendleft(reversed(waiting))
            self.wake(fragment)

        self._loader.load_engine(fragment, loaded)

    def _take_back(self, requests: list[Request]) -> None:
        """What these had to read is there."""
        self._inbox.extendleft(reversed(requests))
        self._queued_bytes += sum([each.size for each in requests])
        self._schedule()
