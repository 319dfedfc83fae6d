"""The examples on docs/configuration.md are files that load, and what it says of them is so."""

from __future__ import annotations

import re
from pathlib import Path

from postbus.config.content import Content
from postbus.config.planning import Limits, make_plan
from postbus.config.steps import Outcome, StepReport, Verb
from postbus.model.rule import CorrelationFilter, SqlFilter
from postbus.model.values import ValueType
from postbus.ops.reload_request import report
from tests.unit.config.files import load

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
LIMITS = Limits(100, 100, 100, 100)


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def test_our_own_file_loads(tmp_path: Path) -> None:
    config = load(tmp_path, block("toml"), "postbus.toml")
    assert (config.name, config.settings) == ("shop", {"port": 6000})
    assert [queue.name for queue in config.content.queues] == ["orders", "failures"]
    [topic] = config.content.topics
    everything, europe, later = topic.subscriptions
    assert everything.rules is None
    assert later.rules == ()
    by_region, large, by_hand = europe.rules or ()
    assert by_region.action is not None
    assert isinstance(large.filter, SqlFilter) and large.filter.parameters["@least"].text == "1000"
    assert isinstance(by_hand.filter, CorrelationFilter)
    paths = [step.path for step in make_plan(config.content, Content(), LIMITS, prune=False).steps]
    assert paths.index("failures") < paths.index("orders")


def test_the_emulators_file_loads(tmp_path: Path) -> None:
    config = load(tmp_path, block("json"))
    assert [queue.name for queue in config.content.queues] == ["orders"]
    [topic] = config.content.topics
    [subscription] = topic.subscriptions
    assert [rule.name for rule in subscription.rules or ()] == ["by-label", "large"]
    assert make_plan(config.content, Content(), LIMITS, prune=False).steps


def test_the_types_of_values_on_the_page_are_those_there_are() -> None:
    listed = PAGE.read_text().partition("with one of ")[2].partition(".")[0]
    assert re.findall(r"`(\w+)`", listed) == [kind.value for kind in ValueType]


def test_a_reload_prints_as_the_page_shows_it() -> None:
    shown = block("text")
    rule = "news/Subscriptions/europe/Rules/large"
    outcome = Outcome.from_json(
        {
            "steps": [
                StepReport(Verb.CREATE, "queue", "failures").to_json(),
                {
                    **StepReport(Verb.CHANGE, "queue", "orders").to_json(),
                    "changes": [["max_delivery_count", "3", "5"]],
                },
                {
                    **StepReport(Verb.CHANGE, "rule", rule).to_json(),
                    "changes": [["filter", '"amount > 1000"', '"amount > 2000"']],
                },
            ],
            "left": [StepReport(Verb.LEAVE, "queue", "old").to_json()],
            "done": 3,
            "notes": ["[settings] port: 6000 → 6001"],
            "error": None,
        }
    )
    lines = [line for line, _ in report(outcome, dry_run=False)]
    assert "\n".join(lines) + "\n" == shown
