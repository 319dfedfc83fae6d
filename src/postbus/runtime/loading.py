"""Loading from the store: engines on first use, pages when a request needs them."""

from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from postbus.broker import records
from postbus.broker.duplicate_history import FILTER_BYTES, History
from postbus.broker.engine import Engine, counted
from postbus.broker.index_pages import (
    BatchPage,
    BodyPage,
    DuePage,
    GroupPage,
    GroupsPage,
    LanePage,
    Loaded,
    Need,
    NextDue,
    Page,
    Pages,
    RowPage,
    SeenPage,
    SeenSlice,
)
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import OUTBOX, PUBLISHING, SCHEDULED, CorruptRow
from postbus.broker.shared_state import SharedState
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, subqueue_of
from postbus.broker.window_budget import WindowBudget
from postbus.errors import (
    InternalError,
    OutcomeUnknown,
    ServiceBusError,
    StoreFailed,
    StoreUnavailable,
)
from postbus.model.times import NEVER, Instant
from postbus.runtime.engine_cache import all_counts
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Request
from postbus.runtime.store_thread import StoreThread
from postbus.store import batch
from postbus.store.batch import StoredBatch
from postbus.store.ports.journal import FragmentPosition, Lease
from postbus.store.ports.store import Store

REPLAY_BYTES: Final = 256 * 1024
"""Journal that is replayed between two turns of the event loop."""

SURVEYED_AT_ONCE: Final = 64

LIVE_SHARE_MAX: Final = 0.25
"""Bodies are copied out of a batch when no more than this share of it is alive."""

Done = Callable[[ServiceBusError | None], None]

log = structlog.get_logger()


class Loader:
    """Reads from one store, on its thread."""

    def __init__(
        self,
        store: Store,
        thread: StoreThread,
        broker: str,
        budget: WindowBudget,
        new_secret: Callable[[], int],
        filter_bytes: int = FILTER_BYTES,
    ) -> None:
        self._store = store
        self._thread = thread
        self._broker = broker
        self._budget = budget
        self._new_secret = new_secret
        self._filter_bytes = filter_bytes
        self.checkpoints: dict[int, int] = {}
        """The checkpoint of each fragment's index. Only the store's thread uses it."""

    def load_engine(self, fragment: LoadedFragment, done: Done) -> None:
        """Acquire the fragment, replay its journal from the checkpoint, set its engine."""

        def acquired(lease: Lease) -> None:
            try:
                ledger = _ledger(fragment, lease, self._filter_bytes)
            except Exception as error:  # requests that wait must be answered in any case
                _refuse(fragment.name, done, error)
                return
            self._replay(fragment, lease, ledger, done)

        def acquire() -> Lease:
            lease = self._store.acquire(fragment.id, self._broker, 0)
            self.checkpoints[fragment.id] = lease.checkpoint
            return lease

        self._thread.submit(acquire, acquired, partial(_refuse, fragment.name, done))

    def _replay(self, fragment: LoadedFragment, lease: Lease, ledger: Ledger, done: Done) -> None:
        start = ledger.head

        def read(batches: list[StoredBatch]) -> None:
            try:
                for stored in batches:
                    header = batch.unpack(stored.data)
                    for position, record in batch.records(stored.data):
                        ledger.replay(records.decode(record), stored.base, position, header.at)
                    ledger.head = stored.base + header.record_count
            except Exception as error:  # as above
                _refuse(fragment.name, done, error)
                return
            if start < ledger.head < lease.head:
                self._replay(fragment, lease, ledger, done)
                return
            self._ready(fragment, lease, ledger, done)

        self._thread.submit(
            partial(self._store.read, fragment.id, ledger.head, REPLAY_BYTES),
            read,
            partial(_refuse, fragment.name, done),
        )

    def _ready(self, fragment: LoadedFragment, lease: Lease, ledger: Ledger, done: Done) -> None:
        if ledger.head != lease.head:
            _refuse(
                fragment.name,
                done,
                CorruptRow(f"the journal ends at {ledger.head}, its head is {lease.head}"),
            )
            return
        prefix = fragment.id.to_bytes(4, "big") + (lease.epoch & 0xFFFFFFFF).to_bytes(4, "big")
        fragment_id = SharedState(ledger, self._budget, prefix, self._new_secret())
        engine = Engine(fragment.name, fragment.policy, fragment_id)
        if fragment.matcher is not None:
            engine.become_topic(fragment.subscriptions, fragment.matcher)
        fragment.engine = engine
        fragment.lease = lease
        for subqueue, receivers in fragment.receiver_queues.items():
            engine.set_receivers(subqueue, len(receivers.members))
        done(None)

    def survey(self, fragments: list[LoadedFragment], done: Done) -> None:
        """Set counts and next work of fragments without an engine. It reads in slices, so that
        commits come in between."""
        now, later = fragments[:SURVEYED_AT_ONCE], fragments[SURVEYED_AT_ONCE:]

        def read() -> list[tuple[FragmentPosition | None, int | None]]:
            return [self._stands(fragment.id) for fragment in now]

        def found(standings: list[tuple[FragmentPosition | None, int | None]]) -> None:
            for fragment, (standing, due) in zip(now, standings, strict=True):
                _learn(fragment, standing, due)
            if later:
                self.survey(later, done)
            else:
                done(None)

        self._thread.submit(read, found, partial(_refuse, "(all)", done))

    def _stands(self, fragment_id: int) -> tuple[FragmentPosition | None, int | None]:
        standing = self._store.position(fragment_id)
        due = None
        if standing is not None and standing.head == standing.checkpoint:
            due = self._store.index.next_due(fragment_id, MAIN, SCHEDULED, -1)
        return standing, due

    async def first_part(self, fragment: LoadedFragment, now: Instant) -> int:
        """Return the first part of a duplicate history inside its window, without an engine."""
        standing = await self._thread.run(partial(self._store.position, fragment.id))
        if standing is None or standing.head > standing.checkpoint:
            # The replay will add ids to the last part, however old that is.
            return 0
        history = _ledger(fragment, standing).history
        return 0 if history is None else history.expire(now)

    def load_pages(self, request: Request, need: Need, done: Done) -> None:
        """Load the pages that a request needs."""
        fragment_id = request.fragment.id
        if request.pages is None:
            request.pages = Pages()
            if request.fragment.lease is not None:
                request.pages.bring_up_to(request.fragment.lease.epoch, -1)
        pages = request.pages

        def read() -> tuple[int, list[tuple[Page, Loaded]]]:
            found = [(page, load_page(self._store, fragment_id, page)) for page in need.pages]
            return self.checkpoints.get(fragment_id, -1), found

        def loaded(result: tuple[int, list[tuple[Page, Loaded]]]) -> None:
            checkpoint, found = result
            if pages.checkpoint != checkpoint:
                pages.forget_rows()
                pages.checkpoint = checkpoint
            for page, content in found:
                pages.add(page, content)
            done(None)

        self._thread.submit(read, loaded, partial(_refuse, request.fragment.name, done))


def load_page(store: Store, fragment: int, page: Page) -> Loaded:
    """Read one page from a store."""
    match page:
        case LanePage():
            return store.index.load_lane(fragment, *page)
        case GroupPage():
            return store.index.load_group(fragment, *page)
        case GroupsPage():
            return store.index.load_groups(fragment, *page)
        case DuePage():
            return store.index.load_due(fragment, *page)
        case NextDue():
            return store.index.next_due(fragment, *page)
        case RowPage():
            return store.index.load_rows(fragment, page.keys)
        case BatchPage():
            return store.read_batch(fragment, page.base)
        case BodyPage():
            return store.read_slice(fragment, *page)
        case SeenPage():
            return store.index.load_seen(fragment, *page)
        case SeenSlice():
            return store.index.load_seen_digests(fragment, *page)
    return store.load_pinned(fragment, page.below, LIVE_SHARE_MAX, page.limit)


def _learn(fragment: LoadedFragment, standing: FragmentPosition | None, due: int | None) -> None:
    if fragment.engine is not None or fragment.waiting is not None or fragment.counts is not None:
        return  # used meanwhile, so newer facts are known
    if standing is not None and standing.head > standing.checkpoint:
        fragment.wakes_at = 0
        return
    try:
        ledger = _ledger(fragment, standing or FragmentPosition(0, 0, b""))
    except Exception as error:  # its first use is refused; the other fragments are surveyed
        log.error("fragment cannot be read", entity=fragment.name, error=repr(error))
        return
    fragment.counts = all_counts(ledger)
    if ledger.count(MAIN, PUBLISHING) or any(
        _unfinished(fragment, ledger, n) for n in fragment.counts
    ):
        fragment.wakes_at = 0
        return
    fragment.wakes_at = min(fragment.wakes_at, NEVER if due is None else due)


def _unfinished(fragment: LoadedFragment, ledger: Ledger, owner: int) -> bool:
    """Whether an owner has work that must go on without a client: messages that are forwarded or
    will be, or messages of a deleted subscription."""
    main, dead = subqueue_of(owner, MAIN), subqueue_of(owner, DEAD_LETTER)
    posted = subqueue_of(owner, TRANSFER_DEAD_LETTER)
    if owner and owner not in fragment.subscriptions:
        return counted(ledger, owner) > 0
    policy = fragment.subscriptions[owner][1] if owner else fragment.policy
    return (
        any(ledger.count(each, OUTBOX) for each in (main, dead, posted))
        or (policy.forward_to is not None and ledger.count(main) > 0)
        or (policy.forward_dead_letters_to is not None and ledger.count(dead) > 0)
    )


def _ledger(
    fragment: LoadedFragment, standing: Lease | FragmentPosition, filter_bytes: int = FILTER_BYTES
) -> Ledger:
    window_ms = fragment.policy.duplicate_window_ms
    return Ledger(
        Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE),
        fragment.index << 48,
        standing.checkpoint,
        standing.state,
        None if window_ms is None else History(window_ms, filter_bytes // fragment.siblings),
    )


def _refuse(name: str, done: Done, error: BaseException) -> None:
    if isinstance(error, StoreFailed):
        log.error("store failed", entity=name, error=str(error))
        done(error)
    elif isinstance(error, ServiceBusError) and not isinstance(error, OutcomeUnknown):
        log.warning("store does not answer", entity=name, error=str(error))
        done(error)
    elif isinstance(error, (CorruptRow, batch.BatchCorrupt)):
        log.error("fragment cannot be read", entity=name, error=str(error))
        done(InternalError(f"The messaging entity '{name}' cannot be read."))
    else:  # not OutcomeUnknown: requests that wait for an engine have written nothing yet
        log.error("store failed", entity=name, error=repr(error))
        done(StoreUnavailable(f"The store of '{name}' does not answer."))
