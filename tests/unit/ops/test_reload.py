"""A server and its file: carried out at the start, read again when asked, written when asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from postbus.broker.destination import Destination
from postbus.config.mistakes import ConfigError
from postbus.config.steps import Outcome
from postbus.errors import QuotaExceeded
from postbus.model.description import EntityStatus, QueueDescription
from postbus.model.rule import RuleDescription
from postbus.namespace.namespace import Namespace
from postbus.ops.export import export_folder, export_running
from postbus.ops.reload import Reload
from postbus.server import Server, _config
from postbus.settings import Settings
from postbus.store.sqlite.folder import DataFolder

pytestmark = pytest.mark.usefixtures("capsys")

NEWS = """
[queues.orders]
max_delivery_count = 3

[topics.news]
[topics.news.subscriptions.all]
[topics.news.subscriptions.eu]
forward_to = "orders"
[topics.news.subscriptions.eu.rules]
eu = { filter = "region = 'eu'" }
vip = { filter = { label = "vip" }, action = "SET seen = TRUE" }
"""


class Bed:
    """A server on a folder, and its file."""

    def __init__(self, folder: Path, text: str, **settings: Any) -> None:
        self.path = folder / "postbus.toml"
        self.path.write_text(text)
        self.data = folder / "data"
        given = {"port": 0, "admin_port": 0, "shutdown_grace_ms": 0, **settings}
        self.settings = Settings.load({"data": self.data, "config": self.path, **given})
        self.server: Any = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bed]:
        with closing(DataFolder(self.data, 0)) as folder:
            self.server = Server(self.settings, _config(self.settings), folder)
            try:
                await self.server.start()
                yield self
            finally:
                self.server._signalled()
                await self.server.serve()

    @property
    def namespace(self) -> Namespace:
        found: Namespace = self.server.namespace
        return found

    @property
    def reloading(self) -> Reload:
        found: Reload = self.server._reloading
        return found

    async def reload(self, text: str | None = None, **options: bool) -> Outcome:
        if text is not None:
            self.path.write_text(text)
        return await self.reloading.reload(**{"dry_run": False, "prune": False, **options})

    async def export(self, form: str = "toml") -> tuple[str, list[str]]:
        asked = json.dumps({"format": form, "keys": True})
        catalog, thread = self.reloading._catalog, self.reloading._thread
        text, lost = await export_running(catalog, thread, "shop", asked)  # type: ignore[misc]
        return text, lost


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def begin(text: str, folder: str = "", **settings: Any) -> Bed:
            (tmp_path / folder).mkdir(exist_ok=True)
            bed = Bed(tmp_path / folder, text, **settings)
            return await stack.enter_async_context(bed.running())

        yield begin


def lines(outcome: Outcome) -> list[str]:
    return [line for told in (*outcome.steps, *outcome.left) for line in told.lines()]


async def test_the_first_start_makes_everything_that_is_in_the_file(start: Any) -> None:
    bed = await start(NEWS)
    queue, topic = bed.namespace.queue("orders"), bed.namespace.topic("news")
    assert queue.description.max_delivery_count == 3
    eu = topic.subscription("eu")
    assert [rule.name for rule in topic.subscription("all").rules()] == ["$Default"]
    assert [rule.name for rule in eu.rules()] == ["eu", "vip"]
    assert eu.forward_to == Destination((queue.only_fragment.id,))
    assert (topic.sql_filter_count, topic.correlation_filter_count) == (2, 1)
    assert await bed.reload() == Outcome()


async def test_named_entities_are_kept_by_a_reload_that_prunes(start: Any) -> None:
    bed = await start("[queues.orders]\n", queue=["bills"], topic=["news/audit"])
    await bed.namespace.update_queue("bills", QueueDescription(max_delivery_count=7))
    await bed.namespace.create_queue("old", QueueDescription())
    outcome = await bed.reload("[queues.new]\n", prune=True)
    assert lines(outcome) == [
        "+ create queue new",
        "- delete queue old",
        "- delete queue orders",
    ]
    assert bed.namespace.queue("bills").description.max_delivery_count == 7
    assert bed.namespace.topic("news").subscription("audit") is not None


async def test_a_file_without_entities_prunes_nothing_though_options_name_some(start: Any) -> None:
    bed = await start("[queues.orders]\n", queue=["bills"])
    with pytest.raises(ConfigError, match="has no entities"):
        await bed.reload("", prune=True)


async def test_a_file_that_makes_a_named_queue_a_topic_is_refused_by_the_option(start: Any) -> None:
    bed = await start("", queue=["bills"])
    with pytest.raises(ConfigError, match=r"^--queue bills: 'bills' is a topic already"):
        await bed.reload("[topics.bills]\n")


async def test_a_restart_undoes_no_change_but_tells_of_it(tmp_path: Path) -> None:
    first = Bed(tmp_path, NEWS)
    async with first.running():
        await first.namespace.update_queue("orders", QueueDescription(max_delivery_count=7))
        await first.namespace.subscriptions.delete_rule("news", "eu", "vip")
        await first.namespace.subscriptions.delete("news", "all")
    second = Bed(tmp_path, NEWS)
    with structlog.testing.capture_logs() as logged:
        async with second.running():
            topic, queue = second.namespace.topic("news"), second.namespace.queue("orders")
            assert topic is not None and queue is not None
            # what is there stays as it is, and what is missing is made
            assert queue.description.max_delivery_count == 7
            assert [rule.name for rule in topic.subscription("eu").rules()] == ["eu"]  # type: ignore[union-attr]
            assert topic.subscription("all") is not None
    told = [each for each in logged if each["log_level"] == "warning"]
    differs, missing = (each for each in told if each.get("part") == "config")
    assert (differs["path"], differs["key"]) == ("orders", "max_delivery_count")
    assert (differs["here"], differs["file"]) == ("7", "3")
    assert missing["path"] == "news/Subscriptions/eu/Rules/vip"


async def test_reading_the_file_again_makes_the_namespace_like_it(start: Any) -> None:
    bed = await start(NEWS)
    text = """
    [queues.orders]
    status = "ReceiveDisabled"
    [queues.new]
    forward_to = "orders"
    [topics.news]
    [topics.news.subscriptions.eu]
    max_delivery_count = 2
    [topics.news.subscriptions.eu.rules]
    eu = { filter = "region = 'europe'" }
    us = { filter = "region = 'us'" }
    """
    expected = [
        "+ create queue new",
        "~ change queue orders",
        "    max_delivery_count: 3 → 10",
        '    status: "Active" → "ReceiveDisabled"',
        "~ change subscription news/Subscriptions/eu",
        "    max_delivery_count: 10 → 2",
        '    forward_to: "orders" → none',
        "~ change rule news/Subscriptions/eu/Rules/eu",
        "    filter: \"region = 'eu'\" → \"region = 'europe'\"",
        "+ create rule news/Subscriptions/eu/Rules/us",
        "= leave rule news/Subscriptions/eu/Rules/vip (not in the file)",
        "= leave subscription news/Subscriptions/all (not in the file)",
    ]
    shown = await bed.reload(text, dry_run=True)
    assert lines(shown) == expected
    assert shown.done == 0
    assert bed.namespace.queue("new") is None

    outcome = await bed.reload()
    assert lines(outcome) == expected
    assert outcome.done == len(outcome.steps) == 5
    queue, topic = bed.namespace.queue("orders"), bed.namespace.topic("news")
    assert queue.description.status is EntityStatus.RECEIVE_DISABLED
    assert [rule.name for rule in topic.subscription("eu").rules()] == ["eu", "us", "vip"]
    again = await bed.reload()
    assert again.steps == ()
    assert len(again.left) == 2


async def test_what_is_not_in_the_file_goes_when_it_is_pruned(start: Any) -> None:
    bed = await start(NEWS)
    await bed.namespace.create_queue("theirs", QueueDescription())
    text = "[topics.news.subscriptions.eu.rules]\nvip = { filter = { label = 'vip' } }"
    outcome = await bed.reload(text, prune=True)
    assert [line for line in lines(outcome) if line.startswith("-")] == [
        "- delete rule news/Subscriptions/eu/Rules/eu",
        "- delete subscription news/Subscriptions/all",
        "- delete queue orders",
        "- delete queue theirs",
    ]
    assert bed.namespace.queues() == []
    [subscription] = bed.namespace.topic("news").subscriptions()
    assert [rule.name for rule in subscription.rules()] == ["vip"]
    assert await bed.reload(prune=True) == Outcome()


async def test_an_empty_file_does_not_prune_all(start: Any) -> None:
    bed = await start(NEWS)
    with pytest.raises(ConfigError, match="has no entities, so --prune would delete every one"):
        await bed.reload("", prune=True)
    assert bed.namespace.queue("orders") is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[queues.a]\n[queues.b]\nlock = 1", r'\[queues."b"\] lock: there is no such key'),
        ("[queues.a]\n[queues.b]\nforward_to = 'c'", r'\[queues."b"\] forward_to: there is no qu'),
        ("[queues.a]\n[queues.news]", r'\[queues."news"\]: the namespace has a topic'),
        ("[queues.a]\n[settings]\nprot = 1", r"\[settings\] prot: there is no such setting"),
    ],
)
async def test_a_file_that_is_wrong_anywhere_changes_nothing(
    start: Any, text: str, problem: str
) -> None:
    bed = await start(NEWS)
    with pytest.raises(ConfigError, match=problem):
        await bed.reload(text)
    assert bed.namespace.queue("a") is None


KEYED = """
[queues.orders]
max_delivery_count = {count}
[[queues.orders.authorization_rules]]
key_name = "worker"
rights = ["Listen"{more}]
"""


@pytest.mark.parametrize("more", ["", ', "Send"'])
async def test_a_key_that_was_replaced_while_the_file_was_read_does_not_come_back(
    start: Any, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    bed = await start(KEYED.format(count=3, more=""))
    queue = bed.namespace.queue("orders")
    [before] = queue.description.authorization_rules
    new_key = 43 * "k" + "="
    plan = bed.reloading._plan

    async def plan_and_be_late(*given: Any, **options: Any) -> Any:
        found = await plan(*given, **options)
        rules = (replace(before, primary_key=new_key, secondary_key=new_key),)
        changed = replace(queue.description, authorization_rules=rules, lock_duration_ms=7_000)
        await bed.namespace.update_queue("orders", changed)
        return found

    monkeypatch.setattr(bed.reloading, "_plan", plan_and_be_late)
    outcome = await bed.reload(KEYED.format(count=4, more=more))
    assert outcome.done == 1 and outcome.error is None
    description = bed.namespace.queue("orders").description
    [after] = description.authorization_rules
    assert after.keys == (new_key, new_key) and before.primary_key != new_key
    assert len(after.rights) == (2 if more else 1)
    assert (description.max_delivery_count, description.lock_duration_ms) == (4, 7_000)


async def test_two_changes_in_one_millisecond_are_two_versions(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = await start(NEWS)
    now = bed.namespace._clock()
    monkeypatch.setattr(bed.namespace, "_clock", lambda: now)
    queue = bed.namespace.queue("orders")
    all_of_it = bed.namespace.topic("news").subscription("all")
    versions = []
    for _ in range(3):
        await bed.namespace.update_queue("orders", queue.description)
        await bed.namespace.subscriptions.update("news", "all", all_of_it.description)
        versions.append((queue.updated_at, all_of_it.updated_at))
    assert len({first for first, _ in versions}) == len({last for _, last in versions}) == 3


async def test_a_failure_says_what_is_done_and_what_is_not(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = await start(NEWS)

    async def refuse(*arguments: object) -> None:
        raise QuotaExceeded("No room for it.")

    monkeypatch.setattr(bed.namespace, "create_topic", refuse)
    outcome = await bed.reload(NEWS + "[topics.more]\n[topics.more.subscriptions.s]\n[queues.a]")
    assert [told.path for told in outcome.steps] == ["a", "more", "more/Subscriptions/s"]
    assert (outcome.done, outcome.error) == (1, "No room for it.")
    assert bed.namespace.queue("a") is not None


async def test_an_error_that_nobody_expects_hides_no_step_that_is_done(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = await start("")

    async def break_down(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(bed.namespace, "create_topic", break_down)
    with structlog.testing.capture_logs() as logs:
        outcome = await bed.reload("[queues.a]\n[topics.b]")
    assert (outcome.done, outcome.error) == (1, "OSError: no space left")
    [line] = [line for line in logs if line["event"] == "file not carried out"]
    assert isinstance(line["exc_info"], OSError)


async def test_whoever_asked_may_leave_and_all_steps_are_taken(start: Any) -> None:
    bed = await start("")
    bed.path.write_text("".join(f"[queues.q{number}]\n" for number in range(20)))
    asking = asyncio.create_task(bed.reload())
    while bed.namespace.queue("q0") is None:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    # the next to ask waits for its turn, and finds everything done
    assert await bed.reload() == Outcome()
    assert len(bed.namespace.queues()) == 20


async def test_queues_that_forward_in_a_circle_are_made(start: Any) -> None:
    bed = await start(
        "[queues.a]\nforward_to = 'b'\n[queues.b]\nforward_to = 'a'\n"
        "[queues.c]\nforward_dead_lettered_messages_to = 'c'"
    )
    a, b, c = bed.namespace.queues()
    assert a.forward_to == Destination((b.only_fragment.id,))
    assert b.forward_to == Destination((a.only_fragment.id,))
    assert c.forward_dead_letters_to == Destination((c.only_fragment.id,))
    assert await bed.reload() == Outcome()


async def test_settings_wait_for_the_next_start(start: Any) -> None:
    text = '[settings]\nlog_level = "info"\n[namespace]\nname = "shop"\n'
    bed = await start(text, connections_max=7)
    changed = f"""
    [settings]
    log_level = "debug"
    connections_max = 9
    [namespace]
    name = "other"
    authorization_rules = [{{ key_name = "k", rights = ["Send"], primary_key = "{"A" * 43}=" }}]
    """
    outcome = await bed.reload(changed)
    assert outcome.notes == (
        "[settings] connections_max: not set → 9",
        "[settings] log_level: info → debug",
        "the authorization rules of the namespace",
        "the name of the namespace: shop → other",
    )


async def test_a_server_without_a_file_says_so(tmp_path: Path) -> None:
    bed = Bed(tmp_path, "")
    bed.settings = bed.settings.model_copy(update={"config": None})
    async with bed.running():
        with pytest.raises(ConfigError, match="started without a file"):
            await bed.reload()


async def test_a_file_that_cannot_be_carried_out_at_the_start_is_one_line(
    tmp_path: Path,
) -> None:
    bed = Bed(tmp_path, "[queues.a]\nforward_to = 'nowhere'")
    with pytest.raises(ConfigError, match=r"\[queues.\"a\"\] forward_to: there is no queue"):
        async with bed.running():
            pass


@pytest.mark.parametrize("form", ["toml", "emulator"])
async def test_an_export_makes_the_same_namespace_elsewhere(start: Any, form: str) -> None:
    bed = await start(NEWS)
    await bed.namespace.subscriptions.create_with("news", "none", bed_subscription(bed), [])
    await bed.namespace.subscriptions.create_rule("news", "all", RuleDescription("more"))
    text, lost = await bed.export(form)
    assert len(lost) == (form == "emulator")
    other = await start(text, "other")
    assert await other.export(form) == (text, [])
    assert (await bed.reload(text)).steps[form == "emulator" :] == ()


def bed_subscription(bed: Bed) -> Any:
    topic = bed.namespace.topic("news")
    assert topic is not None
    subscription = topic.subscription("all")
    assert subscription is not None
    return subscription.description


async def test_keys_that_the_broker_made_are_exported_when_asked_for(tmp_path: Path) -> None:
    rule = '[[queues.orders.authorization_rules]]\nkey_name = "k"\nrights = ["Send"]\n'
    bed = Bed(tmp_path, rule)
    async with bed.running():
        queue = bed.namespace.queue("orders")
        assert queue is not None
        [made] = queue.description.authorization_rules
        assert made.primary_key and made.secondary_key
        assert await bed.reload() == Outcome()
        text, lost = await bed.export()
        assert made.primary_key in text and lost == []
        assert await bed.reload(text) == Outcome(notes=("the name of the namespace: None → shop",))
    without = export_folder(bed.data, "shop", "toml", keys=False)
    pair = f', primary_key = "{made.primary_key}", secondary_key = "{made.secondary_key}"'
    assert without.text == text.replace(pair, "")
    assert without.lost == ["the keys of authorization rules; --keys writes them"]
    emulator = export_folder(bed.data, "shop", "emulator", keys=True)
    assert emulator.lost == ["orders: AuthorizationRules"]


async def test_a_stopped_namespace_is_exported_as_a_running_one(tmp_path: Path) -> None:
    bed = Bed(tmp_path, NEWS)
    async with bed.running():
        text, _ = await bed.export()
    exported = export_folder(bed.data, "shop", "toml", keys=True)
    assert exported.text == text
    assert exported.lost == []


FOR_ALL = f"""
[[namespace.authorization_rules]]
key_name = "reader"
rights = ["Listen"]
primary_key = "{43 * "k"}="
"""
FOR_ONE = FOR_ALL.replace("namespace.", "queues.orders.")


@pytest.mark.parametrize(
    ("text", "mode", "warnings"),
    [
        (FOR_ALL, 0o644, 1),
        (FOR_ONE, 0o644, 1),
        (FOR_ONE, 0o640, 0),
        (KEYED.format(count=3, more=""), 0o644, 0),
    ],
    ids=["namespace", "queue", "group", "no keys"],
)
async def test_a_file_with_keys_that_everybody_can_read_is_warned_of_once(
    tmp_path: Path, text: str, mode: int, warnings: int
) -> None:
    bed = Bed(tmp_path, text)
    bed.path.chmod(mode)
    with structlog.testing.capture_logs() as logs:
        async with bed.running():
            await bed.reload()
            await bed.reload()
    found = [line for line in logs if line["event"] == "keys in the file can be read by others"]
    assert len(found) == warnings
    for line in found:
        assert line["file"] == str(bed.path) and line["remedy"] == f"chmod o-r {bed.path}"
        assert 43 * "k" not in str(line)


async def test_a_name_that_was_an_entitys_is_known_to_whoever_checks_tokens(
    tmp_path: Path,
) -> None:
    bed = Bed(tmp_path, "[queues.a]\n[queues.'a/b']\n")
    async with bed.running():
        await bed.namespace.delete_entity("a")
        assert bed.server._access.authority._former == {"a"}
    bed.path.write_text("")
    async with bed.running():
        assert bed.server._access.authority._former == {"a"}
        await bed.namespace.delete_entity("a/b")
        assert bed.server._access.authority._former == set()
