"""Which subscriptions of a topic get a message, and what each of them gets."""

from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.topic import Copy, Sorted
from postbus.errors import QuotaExceeded
from postbus.model.rule import RuleDescription
from postbus.namespace.message_view import MessageFacts, write_changes
from postbus.rules.actions import Action, TooLarge
from postbus.rules.matching import CORRELATION_FILTERS_MAX, SQL_FILTERS_MAX, Match, RuleSet
from postbus.rules.rule import Rule, compile_rule
from postbus.rules.values import ActionFailed, EvaluationFailed

EVALUATIONS_FOR_A_COPY: Final = 4
"""Rules that are asked in the time in which a copy is made and written."""
STEPS_OF_A_COPY: Final = 64
TOIL_OF_A_COPY: Final = 32
TOIL_MAX: Final = 12_288
"""Microseconds, or so, after which the actions for one message are left to the next turn; and those
of one subscription, whose copies are all made at once, fail."""


class TopicRuleMatcher:
    """The rules of one topic's subscriptions, compiled; the engine's Sorter."""

    def __init__(
        self, new_id: Callable[[], UUID], header_size_max: int = Policy().header_size_max
    ) -> None:
        self.rules = RuleSet()
        self._new_id = new_id
        self._header_size_max = header_size_max
        self._spent = 0
        """What the last message took, in copies that could have been made instead."""
        self._same: tuple[Sequence[Match], Sorted] | None = None
        """The copies of every message, where no message needs to be looked at."""

    @property
    def cost(self) -> int:
        """Rules without an equality are asked for each message, one by one. The next message most
        likely takes as long as the last."""
        return max(1 + self.rules.asked_count // EVALUATIONS_FOR_A_COPY, self._spent)

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
        self._same, self._spent = None, 0

    def put_rule(self, owner: int, rule: Rule) -> None:
        """Add one, or replace that of its name."""
        self.rules.put_rule(owner, rule)
        self._same, self._spent = None, 0

    def remove_rule(self, owner: int, name: str) -> None:
        self.rules.remove_rule(owner, name)
        self._same, self._spent = None, 0

    def remove(self, owner: int) -> None:
        self.rules.remove(owner)
        self._same, self._spent = None, 0

    def copies(self, message: Message, raw: bytes, after: int = 0) -> Sorted:
        matches = self.rules.unconditional
        if matches is not None and not any(match.actions for match in matches):
            if self._same is None or self._same[0] is not matches:
                self._same = matches, Sorted([Copy(match.owner) for match in matches], True)
            return self._same[1]
        facts = MessageFacts(message, raw)
        found: list[Copy] = []
        whole = True
        toil = 0
        for match in self.rules.match(facts):
            if match.owner <= after:
                continue
            if toil > TOIL_MAX:
                whole = False  # the others have their turn later
                break
            toil += self._add_copies(found, match, message, raw, facts)
        self._spent = facts.work.spent // STEPS_OF_A_COPY + toil // TOIL_OF_A_COPY
        return Sorted(found, whole)

    def _add_copies(
        self, found: list[Copy], match: Match, message: Message, raw: bytes, facts: MessageFacts
    ) -> int:
        """The copies of one subscription; returns what its actions took."""
        if match.plain:
            found.append(Copy(match.owner))
        failure = match.failure
        toil = 0
        for _, action in match.actions:
            try:
                if toil > TOIL_MAX:
                    raise ActionFailed(
                        "The actions of the subscription take too long for this message."
                    )
                made = self._changed(match.owner, action, message, raw, facts)
                toil += _toil_of(made, facts)
                found.append(made)
            except EvaluationFailed as failed:
                failure = failure or failed
        if failure is not None:
            found.append(Copy(match.owner, failure=(failure.reason, str(failure))))
        return toil

    def _changed(
        self, owner: int, action: Action, message: Message, raw: bytes, facts: MessageFacts
    ) -> Copy:
        size_max = self._header_size_max
        try:
            written = write_changes(message, raw, action.apply(facts, size_max), facts.given)
        except TooLarge:
            return Copy(owner, too_large=True)
        if written.header_size > size_max:
            return Copy(owner, too_large=True)
        return Copy(
            owner,
            envelope=written.properties_section,
            properties=written.application_section,
            annotations=written.annotations_section,
            message_id=written.message_id,
            session_id=written.session_id,
            partition_key=written.partition_key,
            ttl=written.ttl_ms,
            header_size=written.header_size,
        )


def _toil_of(made: Copy, facts: MessageFacts) -> int:
    """What it took to make a copy by an action, in microseconds or so: all properties are read, and
    written anew."""
    sections = (made.envelope, made.properties, made.annotations)
    written = sum([len(section) for section in sections if section is not None])
    return 16 + len(facts.user) + (written >> 8)
