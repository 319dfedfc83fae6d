"""The file of a server: applied at the start, and read again on request.

A start creates missing entities and leaves the rest: a restart must not undo a change made since.
When the file is read again, somebody asked for its changes, so they are made. Options of `serve`
create entities in the same way. Such entities are never changed, and `--prune` keeps them.
"""

import asyncio
import json
import shlex
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from postbus.config.mistakes import ConfigError, ConfigMistake
from postbus.config.option_reading import with_missing
from postbus.config.planning import Limits, Plan, make_plan
from postbus.config.steps import Outcome, Step, StepReport, Verb
from postbus.namespace.namespace import Namespace
from postbus.namespace.subscriptions import SUBSCRIPTIONS_MAX
from postbus.observe.logs import get_logger
from postbus.ops.applying import StepFailed, carry_out
from postbus.ops.config_file import NamespaceConfig, is_exposed
from postbus.ops.export import content_of
from postbus.rules.matching import CORRELATION_FILTERS_MAX, SQL_FILTERS_MAX
from postbus.runtime.store_thread import StoreThread
from postbus.settings import Settings, SettingsError
from postbus.store.ports.catalog import Catalog

_UNSAID: Final = "not set"

Load = Callable[[Path], NamespaceConfig]

_log = get_logger("config")


class Reload:
    """Keeps a namespace in line with its file."""

    def __init__(
        self,
        settings: Settings,
        config: NamespaceConfig,
        load: Load,
        namespace: Namespace,
        catalog: Catalog,
        thread: StoreThread,
    ) -> None:
        """`load` reads a file as the start did, with the same defaults."""
        self._settings = settings
        self._config = config
        self._load = load
        self._namespace = namespace
        self._catalog = catalog
        self._thread = thread
        self._turn = asyncio.Lock()
        self._warned_of_keys = False
        self._running: set[asyncio.Task[Outcome]] = set()

    async def begin(self) -> None:
        """Create missing entities, and log where the namespace and the file differ.

        Raises ConfigError.
        """
        self._warn_of_keys(self._config)
        if not any((*self._config.content.entities(), *self._config.named.entities())):
            return
        plan = await self._plan(self._config, prune=False)
        missing = [step for step in plan.steps if _is_missing(step)]
        try:
            await carry_out(self._namespace, missing, lambda step: None)
        except StepFailed as failed:
            raise self._error(f"{failed.step.path}: {failed}") from failed
        for step in plan.steps:
            if _is_missing(step):
                continue
            if not step.changes:
                _log.warning("in the file only, and left so", kind=step.kind, path=step.path)
            for change in step.changes:
                _log.warning(
                    "differs from the file, and stays as it is",
                    kind=step.kind,
                    path=step.path,
                    key=change.key,
                    here=change.before,
                    file=change.after,
                )

    async def asked(self, argument: str) -> object:
        """Answer a request through the control socket."""
        options = json.loads(argument)
        outcome = await self.reload(
            dry_run=options["dry_run"] is not False, prune=options["prune"] is True
        )
        return outcome.to_json()

    def signalled(self) -> None:
        """SIGHUP: read the file again and carry it out; the log has the result."""
        self._start(self._reload_and_log())

    async def reload(self, *, dry_run: bool, prune: bool) -> Outcome:
        """Read the file again and, unless it is a `dry_run`, make the namespace like it.

        Raises ConfigError where nothing was begun. The caller may leave: the running step and all
        later steps are still carried out.
        """
        return await asyncio.shield(self._start(self._reload(dry_run, prune)))

    async def close(self, grace_s: float) -> None:
        """Let a running reload end."""
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)

    def _start(self, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _reload(self, dry_run: bool, prune: bool) -> Outcome:
        path = self._settings.config
        if path is None:
            raise ConfigError("the server was started without a file (--config)")
        async with self._turn:
            # Here and for the plan, on another thread: a large file must not hold up messages.
            config = await asyncio.to_thread(self._load, path)
            if prune and not any(config.content.entities()):
                # Such a file was probably cut short.
                raise ConfigError(f"{path}: has no entities, so --prune would delete every one")
            self._warn_of_keys(config)
            notes = self._notes(config)
            plan = await self._plan(config, prune=prune)
            outcome = Outcome(_told(plan.steps), _told(plan.left), notes=notes)
            if dry_run:
                return outcome
            try:
                await carry_out(self._namespace, plan.steps, _log_step)
            except StepFailed as failed:
                _log.error(
                    "file not carried out",
                    path=failed.step.path,
                    error=str(failed),
                    exc_info=None if failed.expected else failed.__cause__,
                )
                return outcome.failed(failed.done, str(failed))
            _log.info("file carried out", file=str(path), steps=len(plan.steps))
            return outcome.carried_out()

    async def _reload_and_log(self) -> Outcome:
        try:
            outcome = await self._reload(dry_run=False, prune=False)
        except ConfigError as error:
            _log.error("file not carried out", error=str(error))
            return Outcome(error=str(error))
        for note in outcome.notes:
            _log.warning("takes effect with the next start", what=note)
        return outcome

    async def _plan(self, config: NamespaceConfig, *, prune: bool) -> Plan:
        present = await self._thread.run(partial(content_of, self._catalog))
        limits = Limits(
            self._namespace.settings.entities_max,
            SUBSCRIPTIONS_MAX,
            SQL_FILTERS_MAX,
            CORRELATION_FILTERS_MAX,
        )
        try:
            wanted = with_missing(config.content, self._config.named)
            return await asyncio.to_thread(make_plan, wanted, present, limits, prune=prune)
        except ConfigMistake as wrong:
            raise self._error(str(wrong)) from None

    def _error(self, text: str) -> ConfigError:
        """An error with the name of the file, unless the place is an option or there is no file."""
        path = self._settings.config
        return ConfigError(text if path is None or text.startswith("--") else f"{path}: {text}")

    def _warn_of_keys(self, config: NamespaceConfig) -> None:
        """Warn once: an operator who keeps the file so has read the warning."""
        path = self._settings.config
        if path is None or self._warned_of_keys or not config.has_keys or not is_exposed(path):
            return
        self._warned_of_keys = True
        _log.warning(
            "keys in the file can be read by others",
            file=str(path),
            remedy=f"chmod o-r {shlex.quote(str(path))}",
        )

    def _notes(self, config: NamespaceConfig) -> tuple[str, ...]:
        """Changes of the file since the start that only another start can carry out."""
        running, before, after = self._settings, self._config.settings, config.settings
        # The next start gets the same flags and variables again, and they win again.
        given = {
            name: getattr(running, name)
            for name in running.model_fields_set
            if name not in before and name != "namespace_name"
        }
        try:
            Settings.load({**given, "config": running.config})
        except SettingsError as error:
            raise ConfigError("; ".join(error.problems)) from None
        notes = [
            f"[settings] {name}: {before.get(name, _UNSAID)} → {after.get(name, _UNSAID)}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
        if config.authorization_rules != self._config.authorization_rules:
            notes.append("the authorization rules of the namespace")
        if config.name != self._config.name:
            notes.append(f"the name of the namespace: {self._config.name} → {config.name}")
        return tuple(notes)


def _is_missing(step: Step) -> bool:
    return step.verb is Verb.CREATE and step.kind != "rule"


def _told(steps: Sequence[Step]) -> tuple[StepReport, ...]:
    return tuple(StepReport.of(step) for step in steps)


def _log_step(step: Step) -> None:
    for change in step.changes:
        _log.info(
            "changed by the file",
            kind=step.kind,
            path=step.path,
            key=change.key,
            before=change.before,
            after=change.after,
        )
    if not step.changes:
        _log.info(f"{step.verb.value}d by the file", kind=step.kind, path=step.path)
