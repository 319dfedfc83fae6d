"""The composition root: settings → stores → namespace → listeners, and back again on stop."""

import asyncio
import gc
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Final, cast

import structlog
import uvloop

from postbus.auth.authority import Authority
from postbus.auth.namespace_key import KeyFileError, choose_key, connection_string
from postbus.auth.opening import Access
from postbus.broker.window_budget import WindowBudget
from postbus.config.mistakes import ConfigError, ConfigMistake
from postbus.config.option_reading import read_options
from postbus.errors import SHUTTING_DOWN, ConnectionForced, OutcomeUnknown, StoreUnavailable
from postbus.feed.readers import FeedReaders
from postbus.feed.service import Feed
from postbus.gateway.connection import Gateway
from postbus.gateway.context import ConnectionContext
from postbus.http.deadletters import REQUEST_MAX_BYTES
from postbus.http.feed import FeedPages
from postbus.http.mailbox import Mailbox
from postbus.http.routing import Front
from postbus.model.description import QueueDescription
from postbus.model.times import Instant
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.entity import Entity, ReceivableEntity
from postbus.namespace.health import Health
from postbus.namespace.idle import IdleDeletion
from postbus.namespace.namespace import Namespace
from postbus.namespace.resubmit import Resubmission
from postbus.namespace.usage import Usage
from postbus.net.budgets import Bounds, Budgets
from postbus.net.http_protocol import HttpHost, HttpLimits
from postbus.net.listener import Listener, allow_open_files
from postbus.net.places import Place, Places
from postbus.observe.logs import TrackingIds, configure
from postbus.observe.metrics import EntityReading, Metrics
from postbus.observe.scrape_cache import Scraping
from postbus.observe.turns import Ticking
from postbus.ops.backup import BACKUP, back_up_running
from postbus.ops.config_file import NamespaceConfig, load_config
from postbus.ops.control import Control, Handler
from postbus.ops.export import EXPORT, export_running
from postbus.ops.reload import Reload
from postbus.ops.reload_request import RELOAD
from postbus.runtime.clock import SystemClock
from postbus.runtime.engine_cache import EngineCache
from postbus.runtime.loading import Loader
from postbus.runtime.runtime import Runtime
from postbus.runtime.store_thread import StoreThread
from postbus.runtime.upkeep import Upkeep, keep_up
from postbus.settings import Settings
from postbus.store.opening import open_data
from postbus.store.ports.namespace_data import (
    DataDamaged,
    DataInUse,
    FormatUnknown,
    NamespaceData,
)
from postbus.store.ports.store import Store
from postbus.tls.certificates import (
    Certificate,
    CertificateError,
    Certificates,
    certificate_files,
)

CLOSE_ANSWER_S: Final = 1.0
"""How long a stop waits for clients to answer the close; some never do."""

COLLECT_AFTER: Final = 20_000
"""The garbage collector looks at young objects when there are so many more than before."""

CLOCK_BEHIND_MS: Final = 1_000
"""From here on the operator is warned: the broker's time runs at half speed until they meet."""


class ClockWrong(Exception):
    """The machine's clock and the data folder disagree by too much for a small error."""


_NO_START: Final = (
    CertificateError,
    ClockWrong,
    ConfigError,
    DataDamaged,
    DataInUse,
    FormatUnknown,
    KeyFileError,
    OSError,
    OutcomeUnknown,
    StoreUnavailable,
)
"""Errors that are told in one line; any other is a fault of ours and shows its traceback."""

SWITCH_S: Final = 0.0005

log = structlog.get_logger("main")


def run(settings: Settings) -> int:
    """Serve until told to stop; returns the exit status."""
    configure(settings.log_level, settings.log_format)
    try:
        return uvloop.run(_serve(settings))
    except _NO_START as error:
        log.error("cannot start", error=str(error))
        return 1


async def _serve(settings: Settings) -> int:
    config = _config(settings)
    if config.name is not None and "namespace_name" not in settings.model_fields_set:
        settings = settings.model_copy(update={"namespace_name": config.name})
    data = open_data(settings, SystemClock().now())
    try:
        for file, was, is_now in data.upgraded:
            # The only way back is an earlier copy: docs/operations.md.
            log.warning("data format upgraded", file=file, was=was, is_now=is_now)
        server = Server(settings, config, data)
        await server.start()
        return await server.serve()
    finally:
        data.close()


def _config(settings: Settings) -> NamespaceConfig:
    """The entities of the file and of the options. Raises ConfigError."""
    config = NamespaceConfig()
    if settings.config is not None:
        config = load_config(settings.config, _defaults(settings, None))
    defaults = _defaults(settings, config.default_lock_duration_ms)
    try:
        return replace(config, named=read_options(settings.queue, settings.topic, defaults))
    except ConfigMistake as wrong:
        raise ConfigError(str(wrong)) from None


def _defaults(settings: Settings, lock_duration_ms: int | None) -> QueueDescription:
    return QueueDescription(
        lock_duration_ms=lock_duration_ms or settings.default_lock_duration_ms,
        max_message_size_kb=settings.message_size_max_kb,
    )


def _collect_seldom() -> None:
    """Fit the garbage collector to this process.

    Messages and deliveries need no collector: they go with their last reference. Connections and
    their parts need it: they refer to each other, and come and go by the hundred. The default took
    14 % of the time at full rate, looking at live messages.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 20)


def _take_turns() -> None:
    """The store's thread needs the interpreter briefly, but at once: while it waits, the disk is
    idle. With the default of 5 ms, twenty clients that send one message after the other get a tenth
    less."""
    sys.setswitchinterval(SWITCH_S)


def _newest(data: NamespaceData, wall: Instant, behind_max_ms: int) -> Instant:
    """Start from the newest stored time, even if the wall clock was set back meanwhile.

    If the clock is very far behind, it is wrong now or was wrong before. In the time of the folder
    every schedule would come due, and locks and expiry would take twice as long.
    """
    newest = data.newest()
    behind_ms = newest - wall
    if behind_ms > behind_max_ms:
        raise ClockWrong(
            f"the clock is {behind_ms} ms behind the latest time in the data folder: set it right, "
            f"or allow as much with the setting clock_behind_max_ms ({behind_max_ms} now)"
        )
    if behind_ms > CLOCK_BEHIND_MS:
        log.warning("clock is behind what is stored", behind_ms=behind_ms)
    return newest


class Server:
    """One process: its parts, started in order and stopped in reverse order."""

    def __init__(
        self,
        settings: Settings,
        config: NamespaceConfig,
        data: NamespaceData,
        new_clock: Callable[[Instant], SystemClock] = SystemClock,
    ) -> None:
        """`new_clock` makes a clock that starts at an instant, or later."""
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._budget = WindowBudget(settings.windows_max_bytes)
        self._config = config
        clock = new_clock(_newest(data, new_clock(0).now(), settings.clock_behind_max_ms))
        self._clock, self._wall = clock.now, clock.wall
        self._metrics = Metrics(version("postbus"))
        self._key = choose_key(settings)
        catalog, stores = data.catalog, data.stores
        self._threads = [StoreThread("catalog", loop)]
        runtimes: list[Runtime] = []
        upkeeps: list[Upkeep] = []
        for number, store in enumerate(stores):
            thread = StoreThread(f"store-{number}", loop)
            self._threads.append(thread)
            loader = self._loader(store, thread)
            meter = self._metrics.store(str(number))
            engine_cache = EngineCache(
                settings.loaded_entities_max, settings.idle_entity_timeout_ms
            )
            runtimes.append(Runtime(store, thread, self._clock, loader, meter, engine_cache))
            upkeeps.append(Upkeep(store, thread, runtimes[-1], loader, meter))
        tracking = TrackingIds(settings.namespace_name, self._wall)
        self.namespace = Namespace(
            settings, catalog, self._threads[0], runtimes, upkeeps, self._clock
        )
        self._reloading = Reload(
            settings,
            config,
            partial(load_config, defaults=_defaults(settings, None)),
            self.namespace,
            catalog,
            self._threads[0],
        )
        self._certificates = Certificates(certificate_files(settings), self._certified)
        rules, certified = config.authorization_rules, self._certificates.names
        self._access = Access(settings, self._key, rules, self._clock, certified)
        authority = self._access.authority
        self._service = ConnectionContext(
            self.namespace,
            authority,
            tracking,
            self._clock,
            self._wall,
            settings,
            f"postbus-{os.getpid()}",
        )
        self._service.turns = self._service.sliced_work.turns = self._metrics.turns
        self.namespace.on_rules = self._service.rules_changed
        self.namespace.on_former = authority.remember
        self._mailbox = Mailbox(self.namespace, self._clock)
        self._feed = self._make_feed(stores, loop)
        self._feed_readers = FeedReaders(
            self.namespace, catalog.reader_offsets, self._threads[0], self._clock
        )
        self._service.on_claims_lost = self._review
        self._certificates.start()
        self._plaintext = settings.on_loopback or settings.allow_plaintext
        self._listener = self._make_listener(authority, tracking)
        self._control = self._make_control(data)
        self._stop = asyncio.Event()
        self._upkeep: asyncio.Task[None] | None = None
        self._ticking = Ticking(self._metrics.turns, loop)

    def _make_control(self, data: NamespaceData) -> Control | None:
        if data.folder is None:
            return None
        catalog, *copied = self._threads[: 1 + len(data.stores)]
        asked: dict[str, Handler] = {
            BACKUP: partial(back_up_running, data, catalog, copied),
            RELOAD: self._reloading.asked,
            EXPORT: partial(export_running, data.catalog, catalog, self.namespace.name),
        }
        return Control(data.folder, asked)

    def _loader(self, store: Store, thread: StoreThread) -> Loader:
        broker = f"{os.getpid()}-{secrets.token_hex(4)}"
        filter_bytes = self._settings.duplicate_filter_kb << 10
        new_secret = partial(secrets.randbits, 64)
        return Loader(store, thread, broker, self._budget, new_secret, filter_bytes)

    def _make_feed(self, stores: Sequence[Store], loop: asyncio.AbstractEventLoop) -> Feed:
        readers = [store.journal_reader() for store in stores]
        threads = self._threads[1:]
        for number, reader in enumerate(readers):
            if reader.own_thread:
                threads[number] = StoreThread(f"feed-{number}", loop)
                self._threads.append(threads[number])
        return Feed(self.namespace, readers, threads)

    def _review(self) -> None:
        """Keys were taken away: end the waits that depend on them."""
        self._mailbox.review()
        self._feed.review()

    def _make_listener(self, authority: Authority, tracking: TrackingIds) -> Listener:
        settings = self._settings
        feeds = FeedPages(
            self._feed,
            self._feed_readers,
            authority.review,
            tracking,
            settings.http_receive_timeout_max_ms,
        )
        app = Front(
            namespace=self.namespace,
            authority=authority,
            clock=self._clock,
            wall=self._wall,
            tracking=tracking,
            health=Health(self.namespace, self._clock).check,
            metrics=Scraping(self._metrics.scrape).page,
            defaults=_defaults(settings, self._config.default_lock_duration_ms),
            mailbox=self._mailbox,
            feeds=feeds,
            resubmission=Resubmission(self.namespace, self._clock),
            usage=Usage(self.namespace, self._clock),
            wait_max_ms=settings.http_receive_timeout_max_ms,
        ).app()
        http = HttpHost(
            app,
            HttpLimits(
                settings.http_header_max_bytes,
                max(settings.http_body_max_bytes, REQUEST_MAX_BYTES),
                settings.http_request_timeout_ms,
                settings.http_keep_alive_timeout_ms,
                settings.websocket_frame_max_bytes,
            ),
            check_host=settings.on_loopback,
            tracking=tracking,
            meter=self._metrics.connections,
            known_as=self._certificates.names,
            message_size_max=lambda: self.namespace.message_size_max,
        )
        return Listener(
            # Gateway has the methods of a protocol without its base class; see Gateway.
            amqp=cast("Callable[[Place], asyncio.Protocol]", partial(Gateway, self._service)),
            http=http,
            places=self._places(),
            first_bytes_timeout_ms=settings.first_bytes_timeout_ms,
            clock=self._clock,
            certificates=self._certificates,
            allow_plaintext=self._plaintext,
        )

    def _places(self) -> Places:
        settings = self._settings
        bounds = Bounds(
            settings.strangers_max_bytes, settings.unfinished_max_bytes, settings.replies_max_bytes
        )
        budgets = Budgets(bounds, self._clock)
        meter = self._metrics.connections
        return Places(settings.connections_max, budgets, self._clock, meter)

    def _certified(self, certificate: Certificate) -> None:
        self._metrics.connections.certificate_until = int(certificate.until.timestamp())
        self._access.authority.hosts_changed()

    async def start(self) -> None:
        settings = self._settings
        self._listener.places.connections_max = allow_open_files(settings.connections_max)
        self._access.open()
        await self.namespace.open()
        await self._feed_readers.open()
        await self._reloading.begin()
        self._metrics.watch(self._readings)
        if self._control is not None:
            await self._control.open()
        ports = await self._listener.listen_as_set(settings)
        self.namespace.survey()
        for upkeep in self.namespace.upkeeps:
            await upkeep.look_for_room()
        self._upkeep = asyncio.create_task(
            keep_up(
                self.namespace.entities,
                self.namespace.upkeeps,
                self._clock,
                IdleDeletion(self.namespace, self._clock).look,
                self.namespace.forwarder.forget_marks,
                self._feed_readers.has_any,
            )
        )
        hidden = not (settings.on_loopback or self._key.fresh)
        text = connection_string(
            settings.host, ports.port, self._key, hidden=hidden, encrypted=not self._plaintext
        )
        _collect_seldom()
        _take_turns()
        # On standard output, for people and for programs that wait for it; the log is elsewhere.
        sys.stdout.write(f"Postbus is ready: {text}\n")
        sys.stdout.flush()

    async def serve(self) -> int:
        """Wait for a signal, then stop in order; a second signal forces."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if self._settings.config is not None:
            # Without a file, SIGHUP keeps its usual meaning, the end of the process.
            loop.add_signal_handler(signal.SIGHUP, self._reloading.signalled)
        await self._stop.wait()
        await self._shut_down()
        return 0

    def _signalled(self) -> None:
        if self._stop.is_set():
            log.warning("stop forced")
            os._exit(1)
        self._stop.set()

    async def _shut_down(self) -> None:
        """Accept nothing more, let work in hand be answered, close, flush."""
        log.info("stopping", connections=len(self._service.gateways))
        grace_s = self._settings.shutdown_grace_ms / 1000
        self._listener.stop()
        self._access.close()
        self._ticking.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()
        for gateway in list(self._service.gateways):
            gateway.stop_reading()
        self._mailbox.stop()
        self._feed.stop()
        self.namespace.forwarder.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not self._service.idle:
                    await asyncio.sleep(0.002)
        for gateway in list(self._service.gateways):
            gateway.close(ConnectionForced(SHUTTING_DOWN))
        with suppress(TimeoutError):
            async with asyncio.timeout(min(grace_s, CLOSE_ANSWER_S)):
                await self._gateways_gone()
        for gateway in list(self._service.gateways):
            gateway.abort()
        await self._listener.drain(grace_s)
        if self._control is not None:
            await self._control.close()
        await self._reloading.close(grace_s)
        fragments = [each for entity in self.namespace.entities() for each in entity.fragments]
        for runtime in self.namespace.runtimes:
            await runtime.stop(fragments)
        for thread in self._threads:
            await thread.stop()
        log.info("stopped")

    async def _gateways_gone(self) -> None:
        while self._service.gateways:
            await asyncio.sleep(0.01)

    def _readings(self) -> Iterable[EntityReading]:
        now = self._clock()
        for entity in self.namespace.every():
            roles = [link.role for link in entity.message_links()]
            ratio = 0.0
            sessions_held: int | None = None
            if isinstance(entity, ReceivableEntity):
                ratio = entity.prefetch.lock_ratio(entity.description.lock_duration_ms, now)
                if entity.description.requires_session:
                    sessions_held = entity.sessions_held
            yield EntityReading(
                entity.path,
                entity.meter,
                self.namespace.engines.known_counts(entity),
                # The roles are the broker's: it receives where a client sends.
                senders=roles.count("receiver"),
                receivers=roles.count("sender"),
                prefetch_lock_ratio=ratio,
                sessions_held=sessions_held,
                feed_lags=self._lags(entity),
            )

    def _lags(self, entity: Entity) -> dict[str, int]:
        if not isinstance(entity, QueueEntity | TopicEntity):
            return {}  # a subscription is in the feed of its topic
        return self._feed_readers.lags(entity)
