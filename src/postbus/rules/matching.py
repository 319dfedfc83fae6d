"""Which subscriptions of a topic a message goes to.

Thousands of rules must not be thousands of evaluations. Most filters ask for some property to have
some value, so rules lie in an index by such an equality, and a message looks up the few that its
own properties lead to. Only these are evaluated, and the rules for which no equality is known. What
comes out is what asking every rule would have said (tests/property/test_rule_matching.py).
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from postbus.rules.actions import Action
from postbus.rules.expressions import Slot
from postbus.rules.facts import Facts
from postbus.rules.predicates import Key
from postbus.rules.rule import Rule
from postbus.rules.values import EvaluationFailed, Value, key_of

SQL_FILTERS_MAX: Final = 2_000
CORRELATION_FILTERS_MAX: Final = 100_000
"""Filters of one topic, over all its subscriptions (semantics A §1.5); the caller keeps them."""


class Match(NamedTuple):
    """What one subscription gets of a message."""

    owner: int
    plain: bool
    """One unchanged copy, for all rules without action that selected it."""
    actions: Sequence[tuple[str, Action]]
    """One copy for each rule with an action that selected it: the rule's name, and the action."""
    failure: EvaluationFailed | None
    """The first rule that could not be evaluated said this."""


class _Entry:
    """One rule in the index."""

    __slots__ = ("alone", "keys", "order", "owner", "rule")

    def __init__(self, owner: int, order: int, rule: Rule, is_only: bool) -> None:
        self.owner = owner
        self.order = order
        self.rule = rule
        self.keys: Collection[Key] | None = None
        """Where it lies in the index; None if every message asks it."""
        self.alone: Match | None = None
        """The whole match, where its subscription has no other rule and this one no action."""
        if is_only and rule.action is None:
            self.alone = Match(owner, True, (), None)


# Ordered sets: an entry leaves as cheaply as it came.
_Bucket = dict[_Entry, None]


class RuleSet:
    """The rules of all subscriptions of one topic. A subscription is a number, its owner."""

    def __init__(self) -> None:
        self.sql_count = 0
        self.correlation_count = 0
        self._entries: dict[int, list[_Entry]] = {}
        self._index: dict[Slot, dict[Hashable, _Bucket]] = {}
        self._system_slots: dict[str, Slot] = {}
        self._asked: _Bucket = {}
        # What every message gets, and the one answer there is if no other rule exists.
        self._fixed: dict[int, Match] = {}
        self._answer: tuple[Match, ...] | None = ()

    @property
    def unconditional(self) -> Sequence[Match] | None:
        """The matches of every message, where no message needs to be looked at; or None."""
        return self._answer

    @property
    def asked_count(self) -> int:
        """Rules that every message has to be tried on."""
        return len(self._asked)

    def set_rules(self, owner: int, rules: Sequence[Rule]) -> None:
        """Replace all rules of a subscription."""
        self._take_out(owner)
        is_only = len(rules) == 1
        entries = [_Entry(owner, order, rule, is_only) for order, rule in enumerate(rules)]
        self._entries[owner] = entries
        for entry in entries:
            self._count(entry, 1)
        if all(rule.selector.constant is not None for rule in rules):
            selected = [rule for rule in rules if rule.selector.constant]
            if selected:
                self._fixed[owner] = _fixed_match(owner, selected)
        else:
            for entry in entries:
                if entry.rule.selector.constant is not False:
                    self._put_in(entry)
        self._summarize()

    def remove(self, owner: int) -> None:
        """Forget a subscription; one that is not known is no error."""
        self._take_out(owner)
        self._summarize()

    def match(self, facts: Facts) -> Sequence[Match]:
        """The subscriptions that get this message, or failed to say so, by their number."""
        answer = self._answer
        if answer is not None:
            return answer
        matches = list(self._fixed.values())
        found: list[_Entry] = []
        failures: dict[_Entry, EvaluationFailed] = {}
        for entry in self._candidates(facts):
            try:
                if entry.rule.selector.is_true(facts):
                    if entry.alone is not None:
                        matches.append(entry.alone)
                    else:
                        found.append(entry)
            except EvaluationFailed as failure:
                failures[entry] = failure
                found.append(entry)
        if found:
            matches += _gathered(found, failures)
        matches.sort(key=_OWNER)
        return matches

    def _candidates(self, facts: Facts) -> Iterator[_Entry]:
        """Every entry that could be true or fail, once."""
        yield from self._asked
        seen: set[_Entry] = set()
        for bucket in self._buckets(facts):
            for entry in bucket:
                if len(entry.keys or ()) > 1:
                    if entry in seen:
                        continue
                    seen.add(entry)
                yield entry

    def _buckets(self, facts: Facts) -> Iterator[_Bucket]:
        index = self._index
        for name, slot in self._system_slots.items():
            bucket = _bucket_of(index[slot], facts.system(name))
            if bucket:
                yield bucket
        if len(index) > len(self._system_slots):
            for name, value in facts.user.items():
                values = index.get(Slot(False, name))
                if values is not None:
                    bucket = _bucket_of(values, value)
                    if bucket:
                        yield bucket

    def _put_in(self, entry: _Entry) -> None:
        alternatives = entry.rule.selector.alternatives
        if not alternatives:
            self._asked[entry] = None
            return
        # The equality that the fewest rules share tells this one apart best.
        entry.keys = min(alternatives, key=self._crowd)
        for slot, value in entry.keys:
            if slot.system:
                self._system_slots[slot.name] = slot
            self._index.setdefault(slot, {}).setdefault(value, {})[entry] = None

    def _crowd(self, keys: Collection[Key]) -> int:
        return sum(len(self._index.get(slot, {}).get(value, ())) for slot, value in keys)

    def _take_out(self, owner: int) -> None:
        self._fixed.pop(owner, None)
        for entry in self._entries.pop(owner, ()):
            self._count(entry, -1)
            self._asked.pop(entry, None)
            for slot, value in entry.keys or ():
                values = self._index[slot]
                del values[value][entry]
                if not values[value]:
                    del values[value]
                if not values:
                    del self._index[slot]
                    if slot.system:
                        del self._system_slots[slot.name]

    def _count(self, entry: _Entry, step: int) -> None:
        if entry.rule.is_correlation:
            self.correlation_count += step
        else:
            self.sql_count += step

    def _summarize(self) -> None:
        self._fixed = dict(sorted(self._fixed.items()))
        conditional = self._asked or self._index
        self._answer = None if conditional else tuple(self._fixed.values())


def _fixed_match(owner: int, selected: Sequence[Rule]) -> Match:
    return Match(
        owner,
        any(rule.action is None for rule in selected),
        tuple((rule.name, rule.action) for rule in selected if rule.action is not None),
        None,
    )


def _bucket_of(values: Mapping[Hashable, _Bucket], value: Value) -> _Bucket | None:
    # A text is its own key, and most values are texts.
    return values.get(value if type(value) is str else key_of(value))


def _gathered(
    found: Sequence[_Entry], failures: Mapping[_Entry, EvaluationFailed]
) -> Iterator[Match]:
    """What several rules of a subscription come to together."""
    for owner, entries in groupby(sorted(found, key=_PLACE), key=_OWNER_OF_ENTRY):
        plain = False
        actions: list[tuple[str, Action]] = []
        failure: EvaluationFailed | None = None
        for entry in entries:
            if entry in failures:
                failure = failure or failures[entry]
            elif entry.rule.action is None:
                plain = True
            else:
                actions.append((entry.rule.name, entry.rule.action))
        yield Match(owner, plain, tuple(actions), failure)


_OWNER: Final = itemgetter(0)
_OWNER_OF_ENTRY: Final = attrgetter("owner")
_PLACE: Final = attrgetter("owner", "order")
