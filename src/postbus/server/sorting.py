"""Which subscriptions of a topic get a message, and what each of them gets."""

from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from postbus.broker.message import Message
from postbus.broker.topic import Copy
from postbus.errors import QuotaExceeded
from postbus.model.rule import RuleDescription
from postbus.rules.actions import Action
from postbus.rules.matching import CORRELATION_FILTERS_MAX, SQL_FILTERS_MAX, Match, RuleSet
from postbus.rules.rule import Rule, compile_rule
from postbus.rules.values import EvaluationFailed
from postbus.server.facts import MessageFacts, write_changes

EVALUATIONS_FOR_A_COPY: Final = 4
"""Rules that are asked in the time in which a copy is made and written."""


class TopicSorter:
    """The rules of one topic's subscriptions, compiled; the engine's Sorter."""

    def __init__(self, new_id: Callable[[], UUID]) -> None:
        self.rules = RuleSet()
        self._new_id = new_id
        self._same: tuple[Sequence[Match], list[Copy]] | None = None
        """The copies of every message, where no message needs to be looked at."""

    @property
    def cost(self) -> int:
        """Rules without an equality are asked for each message, one by one."""
        return 1 + self.rules.asked_count // EVALUATIONS_FOR_A_COPY

    def compile(self, rules: Sequence[RuleDescription]) -> list[Rule]:
        """Raises InvalidArgument for a rule that cannot be."""
        return [compile_rule(rule, self._new_id) for rule in rules]

    def check_room(self, before: Sequence[Rule], after: Sequence[Rule]) -> None:
        """Raise QuotaExceeded where the topic may not have so many filters (semantics A §1.5)."""
        is_correlation = [rule.is_correlation for rule in after]
        was_correlation = [rule.is_correlation for rule in before]
        more = sum(is_correlation) - sum(was_correlation)
        if more > 0 and self.rules.correlation_count + more > CORRELATION_FILTERS_MAX:
            raise QuotaExceeded(
                f"The topic may have no more than {CORRELATION_FILTERS_MAX} correlation filters."
            )
        more = is_correlation.count(False) - was_correlation.count(False)
        if more > 0 and self.rules.sql_count + more > SQL_FILTERS_MAX:
            raise QuotaExceeded(f"The topic may have no more than {SQL_FILTERS_MAX} SQL filters.")

    def set_rules(self, owner: int, rules: Sequence[Rule]) -> None:
        """Replace all rules of a subscription."""
        self.rules.set_rules(owner, rules)
        self._same = None

    def put_rule(self, owner: int, rule: Rule) -> None:
        """Add one, or replace that of its name."""
        self.rules.put_rule(owner, rule)
        self._same = None

    def remove_rule(self, owner: int, name: str) -> None:
        self.rules.remove_rule(owner, name)
        self._same = None

    def remove(self, owner: int) -> None:
        self.rules.remove(owner)
        self._same = None

    def copies(self, message: Message, raw: bytes) -> list[Copy]:
        matches = self.rules.unconditional
        if matches is not None and not any(match.actions for match in matches):
            if self._same is None or self._same[0] is not matches:
                self._same = matches, [Copy(match.owner) for match in matches]
            return self._same[1]
        facts = MessageFacts(message, raw)
        found: list[Copy] = []
        for match in self.rules.match(facts):
            _add_copies(found, match, message, raw, facts)
        return found


def _add_copies(
    found: list[Copy], match: Match, message: Message, raw: bytes, facts: MessageFacts
) -> None:
    if match.plain:
        found.append(Copy(match.owner))
    failure = match.failure
    for _, action in match.actions:
        try:
            found.append(_changed(match.owner, action, message, raw, facts))
        except EvaluationFailed as failed:
            failure = failure or failed
    if failure is not None:
        found.append(Copy(match.owner, failure=(failure.reason, str(failure))))


def _changed(owner: int, action: Action, message: Message, raw: bytes, facts: MessageFacts) -> Copy:
    written = write_changes(message, raw, action.apply(facts))
    return Copy(
        owner,
        envelope=written.properties_section,
        properties=written.application_section,
        annotations=written.annotations_section,
        message_id=written.message_id,
        session_id=written.session_id,
        ttl=written.ttl_ms,
        header_size=written.header_size,
    )
