"""Actions: SET and REMOVE, statement after statement (semantics A §2).

The message itself is not touched. An action returns how the copy differs, and the code that writes
the copy applies the difference.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from postbus.model.values import TimeSpan
from postbus.rules.conversion import converted
from postbus.rules.expressions import Expression, Slot
from postbus.rules.facts import Facts, fold
from postbus.rules.system_properties import (
    CONTENT_TYPE,
    ID_LENGTH_MAX,
    MESSAGE_ID,
    PARTITION_KEY,
    SESSION_ID,
    SYSTEM_PROPERTIES,
)
from postbus.rules.values import ActionFailed, EvaluationFailed, Value
from postbus.rules.work_limit import TooMuchWork

RULE_NAME: Final = "RuleName"
"""The application property by which a copy says which rule made it."""

_LIMITED: Final = (MESSAGE_ID, PARTITION_KEY, SESSION_ID)


class TooLarge(Exception):
    """The headers that an action makes are larger than the limit."""


class ChangedProperty(NamedTuple):
    """The property that a statement changes."""

    slot: Slot
    spelled: str

    @property
    def settable(self) -> bool:
        return not self.slot.system or SYSTEM_PROPERTIES[self.slot.name].settable


class Statement(NamedTuple):
    target: ChangedProperty
    value: Expression | None
    """None for REMOVE."""


class Changes(NamedTuple):
    """How a copy differs from the message it was made of."""

    removed: frozenset[str]
    """Application properties to take away first, by folded name."""
    user: Mapping[str, tuple[str, Value]]
    """Application properties to set then, by folded name: name and value. An existing property
    keeps its own name."""
    system: Mapping[str, Value]
    """System properties by canonical name; None removes the property."""


class Action:
    """The compiled action of a rule."""

    __slots__ = ("_rule_name", "_statements")

    def __init__(self, rule_name: str, statements: Sequence[Statement]) -> None:
        self._rule_name = rule_name
        self._statements = statements

    def apply(self, facts: Facts, size_max: int) -> Changes:
        """The changes it makes to this message, including the name of the rule.

        Raises ActionFailed, and then there is no copy. Raises TooLarge before much is built, if the
        set values alone take more bytes than `size_max`.
        """
        draft = _Draft(facts, size_max)
        try:
            for statement in self._statements:
                draft.carry_out(statement)
        except (ActionFailed, TooMuchWork):
            raise
        except EvaluationFailed as failure:
            raise ActionFailed(str(failure)) from None
        draft.check_keys()
        draft.changed[fold(RULE_NAME)] = (RULE_NAME, self._rule_name)
        return Changes(frozenset(draft.removed), draft.changed, draft.system_changed)


class _Draft:
    """The message as the statements so far have left it: each statement sees earlier results."""

    def __init__(self, facts: Facts, size_max: int) -> None:
        self._facts = facts
        self._sizes: dict[Slot, int] = {}
        self._size_left = size_max
        self.user = dict(facts.user)
        self.removed: set[str] = set()
        self.changed: dict[str, tuple[str, Value]] = {}
        self.system_changed: dict[str, Value] = {}

    def system(self, name: str) -> Value:
        if name in self.system_changed:
            return self.system_changed[name]
        return self._facts.system(name)

    def spend(self, steps: int) -> None:
        self._facts.spend(steps)

    def carry_out(self, statement: Statement) -> None:
        slot, spelled = statement.target
        value = None
        if statement.value is not None:
            self.spend(statement.value.size)
            value = statement.value.evaluate(self)
        size = len(value) if isinstance(value, str | bytes) else 0
        self._size_left += self._sizes.get(slot, 0) - size
        self._sizes[slot] = size
        if self._size_left < 0:
            raise TooLarge
        if slot.system:
            self._set_system(slot.name, value)
        elif value is None:
            # Nothing defines SET to an unknown value, and there is no value to keep.
            self.user.pop(slot.name, None)
            self.changed.pop(slot.name, None)
            self.removed.add(slot.name)
        else:
            self._set_user(slot.name, spelled, value)

    def _set_user(self, name: str, spelled: str, value: Value) -> None:
        there = self.user.get(name)
        if there is not None:
            kept = converted(value, type(there))
            value = value if kept is None else kept
        known = self.changed.get(name)
        self.changed[name] = (spelled if known is None else known[0], value)
        self.user[name] = value

    def _set_system(self, name: str, value: Value) -> None:
        if value is not None:
            wanted = SYSTEM_PROPERTIES[name].type
            given, value = value, converted(value, wanted)
            if value is None:
                raise ActionFailed(f"The system property '{name}' cannot be '{given!s:.64}'.")
        if name in _LIMITED and isinstance(value, str) and len(value) > ID_LENGTH_MAX:
            raise ActionFailed(
                f"The system property '{name}' has {len(value)} characters; "
                f"{ID_LENGTH_MAX} are allowed."
            )
        if name == CONTENT_TYPE and isinstance(value, str) and not value.isascii():
            # AMQP 3.2.4: a symbol.
            raise ActionFailed(f"The system property '{name}' has characters other than ASCII.")
        if name == MESSAGE_ID and not value:
            raise ActionFailed("The system property 'MessageId' cannot be removed.")
        if isinstance(value, TimeSpan) and value.ticks <= 0:
            raise ActionFailed(f"The system property '{name}' cannot be '{value}'.")
        self.system_changed[name] = value

    def check_keys(self) -> None:
        """R-PART-12: as at a send, a partition key beside a session id must equal it."""
        if not {PARTITION_KEY, SESSION_ID} & self.system_changed.keys():
            return
        session_id, partition_key = self.system(SESSION_ID), self.system(PARTITION_KEY)
        if session_id and partition_key and session_id != partition_key:
            raise ActionFailed(
                "The PartitionKey of the message differs from its SessionId: they must be equal."
            )
