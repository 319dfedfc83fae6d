"""Decide a batch of requests, make it durable, only then answer.

There is one Runtime for each store. A turn takes requests that have arrived, lets the engines
decide them, and writes one transaction. All outputs of the turn (answers, refusals, deliveries)
leave after that commit, in order.

Requests that arrive while a commit is under way are decided ahead, on top of records that are not
durable yet, and written behind them. Their outputs wait for both commits; if the first commit
fails, so does the second. A message that is durable is handed out meanwhile (`Turn.deliver`).

No timer starts a turn. So a lone client waits for nobody, and a busy store commits many messages
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
from postbus.model.times import NEVER, Instant
from postbus.observe.meters import StoreMeter
from postbus.observe.turns import ENGINE
from postbus.runtime.commits import (
    NO_ROOM,
    Commit,
    PreparedPart,
    lost_parts,
    note_committed,
    pack_large,
    prepare,
    refusal_of,
    refuse,
    safely,
)
from postbus.runtime.dispatch import serve
from postbus.runtime.engine_cache import EngineCache, Retired
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import Loader
from postbus.runtime.reads import PageReader
from postbus.runtime.requests import Request
from postbus.runtime.store_thread import StoreThread
from postbus.runtime.timers import FragmentTimers
from postbus.runtime.turn import Turn
from postbus.store.ports.journal import Part
from postbus.store.ports.store import Store

REQUESTS_PER_TURN: Final = 128
"""Requests of one turn; an eighth of the inbox if that is more. If a turn took a client's whole
window, this thread would be idle during each commit, and the disk during each turn. Now three small
commits are under way while the fourth is decided. Measured with a window of 500, against turns that
take everything: 7 % more messages; with turns of 256, 3 % less."""
BYTES_PER_TURN: Final = 4 << 20
TOIL_PER_TURN: Final = 24_576
"""`SharedState.toil` of one turn, about a microsecond each. The rest waits for the next turn, so
that other clients have theirs."""
QUEUED_REQUESTS_MAX: Final = 20_000
QUEUED_BYTES_MAX: Final = 64 << 20
AHEAD_REQUESTS_MIN: Final = 1
"""A turn ahead of a commit needs so many requests, and half as many as that commit has. Fewer
requests wait and make the next batch larger: a commit costs as much as several messages."""
AHEAD_REQUESTS_MAX: Final = REQUESTS_PER_TURN // 2
COMMITS_MAX: Final = 3
LOAD_AGAIN_MS: Final = 10_000
"""A discarded engine may have had work of its own, so it is loaded again after this time."""

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
        self._awaiting_engine = 0
        """Requests that wait for an engine to be loaded."""
        self._queued_bytes = 0
        """Size of the requests in the inbox, and of those that wait for an engine."""
        self._woken: dict[LoadedFragment, None] = {}
        """Fragments that the next turn looks at, besides those of its requests."""
        self._hands_out = False
        """Whether one of them has a message that need not wait for the commit under way."""
        self._scheduled = False
        self._commits: deque[Commit] = deque()
        """Commits under way, the oldest first."""
        self._ahead_at = 0
        """Size of the inbox that starts a turn while the newest commit is under way."""
        self._turns = 0
        self._finished = 0
        """The number of the last turn that has no output left."""
        self._exclusive = False
        """Nothing may be decided until all commits are back: an answer among them must show no
        later decision."""
        self._resume: dict[Callable[[], None], None] = {}
        self._page_reader = PageReader(loader, self._take_back, self.wake)
        self._timers = FragmentTimers(clock, self.wake)
        self._loading = 0
        self._stopping = False

    # -- arrival ---------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request of a client."""
        request.fragment.used = True
        self.attend(request)

    def attend(self, request: Request) -> None:
        """Queue a request of the broker itself. It does not count as use of the fragment."""
        self._inbox.append(request)
        self._queued_bytes += request.size
        self._schedule()

    def wake(self, fragment: LoadedFragment) -> None:
        """Let the next turn look at the fragment: credit came, or a timer rang."""
        self._woken[fragment] = None
        if self._commits and not self._hands_out:
            self._hands_out = fragment.has_durable()
        self._schedule()

    @property
    def congested(self) -> bool:
        """Whether too many requests wait. Connections should stop reading then."""
        reader = self._page_reader
        queued = len(self._inbox) + self._awaiting_engine + reader.held_count
        queued_bytes = self._queued_bytes + reader.held_bytes
        return queued > QUEUED_REQUESTS_MAX or queued_bytes > QUEUED_BYTES_MAX

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing is being read and nothing written."""
        reading = self._loading or self._page_reader.busy
        return not (self._inbox or self._commits or self._scheduled or reading)

    def when_relieved(self, resume: Callable[[], None]) -> None:
        """Call back once when the congestion is over."""
        self._resume[resume] = None

    def _schedule(self) -> None:
        if self._scheduled or (self._commits and not self._goes_ahead):
            return
        self._scheduled = True
        self._loop.call_soon(self._meter.turns.timed, ENGINE, self._turn)

    @property
    def _goes_ahead(self) -> bool:
        """Whether a turn has enough to do while a commit is under way."""
        return not self._must_wait and (len(self._inbox) >= self._ahead_at or self._hands_out)

    @property
    def _must_wait(self) -> bool:
        """Whether nothing may be decided before a commit is back."""
        return bool(self._commits) and (self._exclusive or len(self._commits) >= COMMITS_MAX)

    # -- one turn --------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        if self._must_wait:
            # The turn that started the commit has refused a request, and its owner asked again.
            return
        self._turns += 1
        turn = Turn(self._turns, self._finished, self._clock())
        self._decide(turn)
        written: list[PreparedPart] = []
        for fragment in turn.fragments:
            try:
                chores = serve(fragment, turn)
                if not self._stopping:  # else the next start continues them
                    self._inbox.extend(chores)
                part = self._written(fragment, turn.now)
            except Exception as error:  # as in _decide
                self._fault(fragment, error, turn)
            else:
                if part is not None:
                    written.append(part)
                if fragment.waiting_subqueues:
                    self._woken[fragment] = None  # there is more to hand out
        if written:
            self._commit(written, turn)
        for fragment, output in turn.at_once:
            safely(fragment, output)
        if not written and self._commits:
            # Its outputs may depend on records that are not durable yet.
            self._commits[-1].turn.join(turn)
        elif not written:
            self._exclusive = False
            self._finish(turn)
        self._page_reader.read()
        if self._inbox:
            self._schedule()

    def _decide(self, turn: Turn) -> None:
        """Let the engines decide requests of the inbox."""
        fragments, self._woken, self._hands_out = self._woken, {}, False
        now = turn.now
        for fragment in fragments:
            if fragment.engine is None and fragment.gone is None and fragment.waiting is None:
                self._load(fragment, [])
        inbox, reader = self._inbox, self._page_reader
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
                turn.outputs.append((fragment, partial(request.refuse, refusal)))
                turn.requests.append(request)  # a failed commit drops outputs and refuses these
                continue
            engine = fragment.engine
            if engine is None:
                self._await_engine(request)
                continue
            fragments[fragment] = None
            if reader.held and reader.hold(request, engine, now):
                continue
            if request.pages is not None and fragment.lease is not None:
                request.pages.bring_up_to(fragment.lease.epoch, engine.ledger.checkpoint)
            try:
                need = request.decide(engine, now)
            except ServiceBusError as error:
                turn.outputs.append((fragment, partial(request.refuse, error)))
            except Exception as error:  # a bug, or a broken disk: stop the fragment
                turn.requests.append(request)
                self._fault(fragment, error, turn)
                continue
            else:
                if need is not None:
                    reader.want(request, need, engine)
                    continue
                bytes_left -= request.size
                if request.exclusive:
                    self._exclusive = True
                turn.outputs.append((fragment, request.answer))
            toil_left -= engine.shared.take_toil()
            turn.requests.append(request)
        self._relieve()
        turn.fragments = {each: None for each in fragments if each.engine is not None}

    def _await_engine(self, request: Request) -> None:
        fragment = request.fragment
        self._awaiting_engine += 1
        self._queued_bytes += request.size
        if fragment.waiting is None:
            self._load(fragment, [request])
        else:
            fragment.waiting.append(request)

    def _relieve(self) -> None:
        if self._resume and not self.congested:
            resume, self._resume = self._resume, {}
            for call in resume:
                self._loop.call_soon(call)

    # -- commit ----------------------------------------------------------------------------

    def _written(self, fragment: LoadedFragment, now: Instant) -> PreparedPart | None:
        engine, lease = fragment.engine, fragment.lease
        if engine is None or lease is None:
            return None
        # A checkpoint includes records that may still fail. Then it fails with them: the store
        # refuses a part that does not begin where its journal ends.
        checkpoint = fragment.make_checkpoint(engine) if fragment.checkpoint_due(engine) else None
        if not engine.ledger.pending and checkpoint is None:
            return None
        return prepare(fragment, engine, lease, now, checkpoint)

    def _commit(self, written: list[PreparedPart], turn: Turn) -> None:
        commit = Commit(written, turn)
        self._commits.append(commit)
        worth = max(AHEAD_REQUESTS_MIN, len(turn.requests) // 2)
        self._ahead_at = min(worth, AHEAD_REQUESTS_MAX)
        self._writer.submit(
            partial(self._write_all, written),
            partial(self._committed, commit),
            partial(self._not_committed, commit),
        )

    def _committed(self, commit: Commit, passed: frozenset[int]) -> None:
        """The store has the commit, except for fragments that another broker has taken over."""
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
        self._finish(commit.turn)

    def _not_committed(self, commit: Commit, error: BaseException) -> None:
        """The store refused the commit, or failed."""
        self._returned(commit)
        self._meter.failures += 1
        log.error("commit failed", error=str(error), fragments=len(commit.written))
        refusal = refusal_of(error)
        self._lost(lost_parts(commit.written, refusal), commit, refusal)
        self._finish(commit.turn)

    def _returned(self, commit: Commit) -> None:
        assert self._commits[0] is commit, "a store answers in order"
        self._commits.popleft()
        if not self._commits:
            self._exclusive = False

    def _lost(self, parts: list[PreparedPart], commit: Commit, refusal: ServiceBusError) -> None:
        """Refuse the requests of parts that are not durable, and all decisions on top of them."""
        for each in (commit, *self._commits):
            refuse({part.fragment for part in parts}, each.turn, refusal)
        for part in parts:
            if part.fragment.engine is part.engine:  # it may have been discarded and loaded again
                self.discard(part.fragment, refusal)

    def _write_all(self, written: list[PreparedPart]) -> frozenset[int]:
        """Pack what is not packed yet, and write all parts. Runs on the store's thread."""
        pack_large(written)
        return self._write([each.part for each in written])

    def _write(self, parts: list[Part]) -> frozenset[int]:
        """Write all parts. Runs on the store's thread."""
        passed = self._store.commit(parts)
        for part in parts:
            if part.checkpoint is not None and part.lease.fragment in passed:
                self._loader.checkpoints[part.lease.fragment] = part.checkpoint.offset
        return passed

    def discard(self, fragment: LoadedFragment, refusal: ServiceBusError) -> None:
        """Drop the engine; the next use loads it from the store."""
        fragment.unload()
        fragment.counts = None
        self._engine_cache.dropped(fragment)
        fragment.chores.clear()
        self._timers.cancel(fragment)
        now = self._clock()
        # A fragment that cannot be read needs an operator, so no timer loads it again.
        lasting = fragment.gone is not None or isinstance(refusal, InternalError)
        fragment.wakes_at = NEVER if lasting else now + LOAD_AGAIN_MS
        self._timers.set(fragment, now)
        lost, fragment.on_lost = fragment.on_lost, {}
        for call in lost:
            safely(fragment, partial(call, refusal))

    def _finish(self, turn: Turn) -> None:
        self._finished = turn.number
        for fragment, output in turn.outputs:
            safely(fragment, output)
        now = self._clock()  # the commit may have taken long
        for fragment in turn.fragments:
            self._timers.set(fragment, now)
        if self._engine_cache.crowded:
            self._retired(self._engine_cache.make_room(now), now)
        if self._inbox or self._woken:
            self._schedule()

    def _fault(self, fragment: LoadedFragment, error: Exception, turn: Turn) -> None:
        """Stop a fragment that cannot go on, and undo all that it decided in this turn."""
        log.error("fragment stopped", entity=fragment.name, fragment=fragment.id, exc_info=error)
        refusal = InternalError(f"The messaging entity '{fragment.name}' cannot be read.")
        # Earlier turns are on their way to the disk, and stay valid.
        refuse({fragment}, turn, refusal)
        self.discard(fragment, refusal)

    # -- time ------------------------------------------------------------------------------

    def set_timer_again(self, fragment: LoadedFragment) -> None:
        """Set the timer of a fragment anew, because the clock was set."""
        self._timers.set_again(fragment)

    def survey(self, fragments: list[LoadedFragment]) -> None:
        """Read the counts of fragments and when they have work, without loading their engines.

        If the index of a fragment is behind its journal, its engine is loaded."""

        def surveyed(error: ServiceBusError | None) -> None:
            for fragment in fragments:
                self._timers.set(fragment, self._clock())
            if error is not None and not self._stopping:
                self._loop.call_later(LOAD_AGAIN_MS / 1000, self.survey, fragments)

        self._loader.survey(fragments, surveyed)

    # -- engines in memory -----------------------------------------------------------------

    @property
    def loaded(self) -> int:
        """The number of engines in memory."""
        return len(self._engine_cache)

    def forget_idle(self) -> None:
        """Forget engines that nobody has used for a while."""
        now = self._clock()
        self._retired(self._engine_cache.age(now), now)

    def _retired(self, retired: Retired, now: Instant) -> None:
        for fragment in retired.forgotten:
            self._woken.pop(fragment, None)
            self._timers.set(fragment, now)
        for fragment in retired.unwritten:
            fragment.checkpoint_wanted = True
            self.wake(fragment)

    # -- the end ---------------------------------------------------------------------------

    async def stop(self, fragments: list[LoadedFragment]) -> None:
        """Finish requests under way, write checkpoints, release the fragments."""
        self._stopping = self._timers.stopped = True
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
                # Nothing is lost: the next start replays more of the journal.
                log.warning("fragment not released", entity=fragment.name, error=str(error))
            fragment.unload()
            self._engine_cache.dropped(fragment)

    async def quiet(self) -> None:
        """Wait until all requests are answered."""
        while not self.idle:
            await asyncio.sleep(0.002)

    # -- loading ---------------------------------------------------------------------------

    def _load(self, fragment: LoadedFragment, waiting: list[Request]) -> None:
        """Load the engine. Requests that come meanwhile are added to `waiting`."""
        fragment.waiting = waiting
        self._loading += 1

        def loaded(error: ServiceBusError | None) -> None:
            self._loading -= 1
            self._awaiting_engine -= len(waiting)
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
        """Decide these requests next: their pages are loaded."""
        self._inbox.extendleft(reversed(requests))
        self._queued_bytes += sum([each.size for each in requests])
        self._schedule()
