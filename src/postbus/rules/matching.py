"""Which subscriptions of a topic a message goes to.

Thousands of rules must not be thousands of evaluations. Most filters ask for a property to have a
value, so rules lie in an index by this equality. A message looks up the few rules that its own
properties lead to. Only these are evaluated, and the rules without a known equality. The result is
the same as if every rule were evaluated (tests/property/test_rule_matching.py).
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from postbus.rules.actions import Action
from postbus.rules.expressions import Slot
from postbus.rules.facts import Facts
from postbus.rules.predicates import STEPS_OF_A_TEST, Key
from postbus.rules.rule import Rule
from postbus.rules.values import EvaluationFailed, Value, key_of
from postbus.rules.work_limit import TooMuchWork

SQL_FILTERS_MAX: Final = 2_000
CORRELATION_FILTERS_MAX: Final = 100_000
"""Filters of a topic, over all its subscriptions (semantics A §1.5); the caller enforces it."""


class Match(NamedTuple):
    """The copies of a message for one subscription."""

    owner: int
    plain: bool
    """An unchanged copy, for all rules without action that selected it."""
    actions: Sequence[tuple[str, Action]]
    """A copy for each rule with an action that selected it: the rule's name, and the action."""
    failure: EvaluationFailed | None
    """The failure of the first rule that could not be evaluated."""


class _Entry:
    """A rule in the index."""

    __slots__ = ("alone", "key", "keys", "owner", "rule")

    def __init__(self, owner: int, key: str, rule: Rule) -> None:
        self.owner = owner
        self.key = key
        """Its name, as rules are told apart and put in order."""
        self.rule = rule
        self.keys: Collection[Key] | None = None
        """Where it lies in the index; None if every message asks it, or none does."""
        self.alone: Match | None = None
        """The whole match, if this is the only rule of its subscription and has no action."""


# Ordered sets: an entry leaves as cheaply as it came.
_Bucket = dict[_Entry, None]


class _Owned:
    """The rules of one subscription. While each rule is always true or always false, the match is
    fixed, and no rule lies in the index."""

    __slots__ = ("conditional", "entries", "plain", "with_action")

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self.conditional = 0
        """The number of rules that depend on the message. Rules that are always true are in `plain`
        (their number without an action) and `with_action`."""
        self.plain = 0
        self.with_action: dict[str, _Entry] = {}

    def note(self, entry: _Entry, step: int) -> None:
        """An entry comes or goes."""
        constant = entry.rule.selector.constant
        if constant is None:
            self.conditional += step
        elif constant and entry.rule.action is None:
            self.plain += step
        elif constant and step > 0:
            self.with_action[entry.key] = entry
        elif constant:
            del self.with_action[entry.key]

    def fixed(self, owner: int) -> Match | None:
        """The match of every message; None if no message matches."""
        if self.conditional or not (self.plain or self.with_action):
            return None
        entries = [entry for _, entry in sorted(self.with_action.items())]
        actions = [(each.rule.name, each.rule.action) for each in entries]
        return Match(
            owner,
            self.plain > 0,
            tuple([(name, action) for name, action in actions if action is not None]),
            None,
        )


class RuleSet:
    """The rules of all subscriptions of one topic. A subscription is a number, its owner. Names
    tell the rules of a subscription apart, without regard to case."""

    def __init__(self) -> None:
        self.sql_count = 0
        self.correlation_count = 0
        self._owned: dict[int, _Owned] = {}
        self._index: dict[Slot, dict[Hashable, _Bucket]] = {}
        self._system_slots: dict[str, Slot] = {}
        self._asked: _Bucket = {}
        # The fixed matches of every message, and the only answer if no other rule exists.
        self._fixed: dict[int, Match] = {}
        self._answer: tuple[Match, ...] | None = ()

    @property
    def unconditional(self) -> Sequence[Match] | None:
        """The matches of every message, where no message needs to be looked at; or None."""
        return self._answer

    @property
    def asked_count(self) -> int:
        """Rules that are evaluated for every message."""
        return len(self._asked)

    def set_rules(self, owner: int, rules: Sequence[Rule]) -> None:
        """Replace all rules of a subscription."""
        self._take_out(owner)
        for rule in rules:
            self._drop(owner, rule.name)
            self._add(owner, rule)
        self._summarize(owner)

    def put_rule(self, owner: int, rule: Rule) -> None:
        """Add a rule, or replace the rule of this name. The other rules are not touched: there may
        be thousands, and each came by itself."""
        self._drop(owner, rule.name)
        self._add(owner, rule)
        self._summarize(owner)

    def remove_rule(self, owner: int, name: str) -> None:
        """An unknown name is no error."""
        self._drop(owner, name)
        self._summarize(owner)

    def rule(self, owner: int, name: str) -> Rule | None:
        owned = self._owned.get(owner)
        entry = None if owned is None else owned.entries.get(name.casefold())
        return None if entry is None else entry.rule

    def remove(self, owner: int) -> None:
        """Forget a subscription; an unknown owner is no error."""
        self._take_out(owner)
        self._summarize(owner)

    def match(self, facts: Facts) -> Sequence[Match]:
        """The subscriptions that get this message, or failed to say so, by their number."""
        answer = self._answer
        if answer is not None:
            return answer
        matches = list(self._fixed.values())
        found: list[_Entry] = []
        failures: dict[_Entry, EvaluationFailed] = {}
        late: set[int] = set()
        too_much: TooMuchWork | None = None
        candidates = self._candidates(facts)
        for entry in candidates:
            try:
                facts.spend(STEPS_OF_A_TEST)
                if entry.rule.selector.is_true(facts):
                    if entry.alone is not None:
                        matches.append(entry.alone)
                    else:
                        found.append(entry)
            except TooMuchWork as failure:
                # Nor is there time to ask the others.
                late = {entry.owner, *(each.owner for each in candidates)}
                too_much = failure
                break
            except EvaluationFailed as failure:
                failures[entry] = failure
                found.append(entry)
        if found:
            matches += _gathered(found, failures)
        if too_much is not None:
            matches = _with_failure(matches, late, too_much)
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

    def _add(self, owner: int, rule: Rule) -> None:
        owned = self._owned.get(owner)
        if owned is None:
            owned = self._owned[owner] = _Owned()
        entry = _Entry(owner, rule.name.casefold(), rule)
        was_fixed = not owned.conditional
        owned.entries[entry.key] = entry
        owned.note(entry, 1)
        self._count(entry, 1)
        if owned.conditional:
            for each in owned.entries.values() if was_fixed else (entry,):
                self._put_in(each)
        _find_alone(owned)

    def _drop(self, owner: int, name: str) -> None:
        owned = self._owned.get(owner)
        entry = None if owned is None else owned.entries.pop(name.casefold(), None)
        if owned is None or entry is None:
            return
        was_fixed = not owned.conditional
        owned.note(entry, -1)
        self._count(entry, -1)
        self._pull_out(entry)
        if not owned.conditional and not was_fixed:
            for each in owned.entries.values():
                self._pull_out(each)
        _find_alone(owned)

    def _take_out(self, owner: int) -> None:
        owned = self._owned.pop(owner, None)
        for entry in () if owned is None else owned.entries.values():
            self._count(entry, -1)
            self._pull_out(entry)

    def _put_in(self, entry: _Entry) -> None:
        selector = entry.rule.selector
        if selector.constant is False:
            return
        alternatives = selector.alternatives
        if not alternatives:
            self._asked[entry] = None
            return
        # The equality that the fewest rules share distinguishes this rule best.
        entry.keys = min(alternatives, key=self._crowd)
        for slot, value in entry.keys:
            if slot.system:
                self._system_slots[slot.name] = slot
            self._index.setdefault(slot, {}).setdefault(value, {})[entry] = None

    def _crowd(self, keys: Collection[Key]) -> int:
        return sum(len(self._index.get(slot, {}).get(value, ())) for slot, value in keys)

    def _pull_out(self, entry: _Entry) -> None:
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
        entry.keys = None

    def _count(self, entry: _Entry, step: int) -> None:
        if entry.rule.is_correlation:
            self.correlation_count += step
        else:
            self.sql_count += step

    def _summarize(self, owner: int) -> None:
        """The rules of an owner have changed."""
        owned = self._owned.get(owner)
        if owned is not None and not owned.entries:
            del self._owned[owner]
        fixed = None if owned is None else owned.fixed(owner)
        if fixed != self._fixed.get(owner):
            self._fixed.pop(owner, None)
            if fixed is not None:
                self._fixed[owner] = fixed
            self._fixed = dict(sorted(self._fixed.items()))
            self._answer = tuple(self._fixed.values())
        if self._asked or self._index:
            self._answer = None
        elif self._answer is None:
            self._answer = tuple(self._fixed.values())


def _find_alone(owned: _Owned) -> None:
    """See whether a rule is the only rule. Two rules are enough to look at."""
    only = len(owned.entries) == 1
    for entry in islice(owned.entries.values(), 2):
        plain = only and entry.rule.action is None
        entry.alone = Match(entry.owner, True, (), None) if plain else None


def _bucket_of(values: Mapping[Hashable, _Bucket], value: Value) -> _Bucket | None:
    # A text is its own key, and most values are texts.
    return values.get(value if type(value) is str else key_of(value))


def _gathered(
    found: Sequence[_Entry], failures: Mapping[_Entry, EvaluationFailed]
) -> Iterator[Match]:
    """The matches of several rules, joined for each subscription."""
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


def _with_failure(
    matches: Sequence[Match], late: set[int], failure: EvaluationFailed
) -> list[Match]:
    """The matches with a failure for these owners. Other rules may have selected the message."""
    known = {match.owner: match for match in matches}
    for owner in late:
        before = known.get(owner) or Match(owner, False, (), None)
        known[owner] = before._replace(failure=before.failure or failure)
    return list(known.values())


_OWNER: Final = itemgetter(0)
_OWNER_OF_ENTRY: Final = attrgetter("owner")
_PLACE: Final = attrgetter("owner", "key")
