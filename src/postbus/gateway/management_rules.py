"""Rules over AMQP: add-rule, remove-rule and enumerate-rules of `$management` (wire §6).

Changes are made by the namespace, as those over HTTP are; the answer follows when they are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from postbus.amqp.codec.types import Described, Int, Timestamp, ULong
from postbus.errors import InternalError, InvalidArgument, ServiceBusError
from postbus.gateway.management_fields import Fields
from postbus.gateway.management_keys import RULE_KEYS, SQL_KEYS
from postbus.gateway.nodes import NodeRequest
from postbus.model.rule import (
    FALSE_EXPRESSION,
    TRUE_EXPRESSION,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.namespace.entities import SubscriptionEntity
from postbus.namespace.rule_values import amqp_from_typed, typed_from_amqp
from postbus.observe.logs import get_logger

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection

_OK: Final = 200
_NO_CONTENT: Final = 204
RULES_AT_ONCE: Final = 100
RULE_OPERATIONS: Final = frozenset({"add-rule", "remove-rule", "enumerate-rules"})
_LEVEL: Final = Int(20)

# Two different magnitudes, as Azure has them (wire §6.3).
_RULE: Final = ULong(0x13700000004)
_EMPTY_ACTION: Final = ULong(0x13700000005)
_SQL_ACTION: Final = ULong(0x13700000006)
_SQL_FILTER: Final = ULong(0x1370000006)
_TRUE_FILTER: Final = ULong(0x1370000007)
_FALSE_FILTER: Final = ULong(0x1370000008)
_CORRELATION_FILTER: Final = ULong(0x1370000009)

# Of a correlation filter: our field, and its key in a request.
_KEYS: Final = {
    "correlation_id": "correlation-id",
    "message_id": "message-id",
    "to": "to",
    "reply_to": "reply-to",
    "label": "label",
    "session_id": "session-id",
    "reply_to_session_id": "reply-to-session-id",
    "content_type": "content-type",
}

_log = get_logger("rules")


class RuleNode:
    """The rules of one subscription, as its management node shows them."""

    def __init__(self, gateway: ClientConnection, subscription: SubscriptionEntity) -> None:
        self._gateway = gateway
        self._subscription = subscription

    def operations(self) -> dict[str, Callable[[NodeRequest, Fields], None]]:
        return {
            "add-rule": self._add,
            "remove-rule": self._remove,
            "enumerate-rules": self._enumerate,
        }

    def _add(self, request: NodeRequest, fields: Fields) -> None:
        rule = read_rule(fields)
        under = self._subscription
        self._carry_out(request, self._gateway.namespace.create_rule(under.topic, under.name, rule))

    def _remove(self, request: NodeRequest, fields: Fields) -> None:
        name, under = fields.text("rule-name"), self._subscription
        self._carry_out(request, self._gateway.namespace.delete_rule(under.topic, under.name, name))

    def _enumerate(self, request: NodeRequest, fields: Fields) -> None:
        skip, top = fields.number("skip"), fields.number("top")
        if skip < 0 or top < 0:
            raise InvalidArgument("The skip and the top must not be negative.")
        rules = self._subscription.rules()[skip : skip + min(top, RULES_AT_ONCE)]
        if rules:
            entries = [{"rule-description": write_rule(rule)} for rule in rules]
            request.respond(_OK, "OK", {"rules": entries})
        else:
            request.respond(_NO_CONTENT, "No rules", {})

    def _carry_out(self, request: NodeRequest, change: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await change
            except ServiceBusError as error:
                request.refuse(error, self._subscription.path)
            except Exception:
                _log.exception("rule not changed", entity=self._subscription.path)
                request.refuse(InternalError("The rule was not changed."), self._subscription.path)
            else:
                request.respond(_OK, "OK", {})

        self._gateway.service.keep(asyncio.get_running_loop().create_task(run()))


def read_rule(fields: Fields) -> RuleDescription:
    """The rule that a request describes. Raises InvalidArgument."""
    name = fields.text("rule-name")
    described = Fields.of(fields.optional_map("rule-description"))
    described.only(RULE_KEYS)
    action = described.optional_map("sql-rule-action")
    return RuleDescription(
        name, _read_filter(described), None if action is None else SqlAction(_expression(action))
    )


def _expression(sql: dict[Any, Any]) -> str:
    given = Fields.of(sql)
    given.only(SQL_KEYS)
    return given.text("expression")


def _read_filter(described: Fields) -> Filter:
    sql = described.optional_map("sql-filter")
    correlation = described.optional_map("correlation-filter")
    if sql is not None and correlation is not None:
        raise InvalidArgument("The rule has two filters.")
    if sql is not None:
        expression = _expression(sql)
        # The SDKs have no other way to say it here.
        if expression == TRUE_EXPRESSION:
            return TrueFilter()
        return FalseFilter() if expression == FALSE_EXPRESSION else SqlFilter(expression)
    if correlation is None:
        return TrueFilter()
    given = Fields.of(correlation)
    given.only(frozenset({*_KEYS.values(), "properties"}))
    properties = given.optional_map("properties") or {}
    return CorrelationFilter(
        **{field: given.optional_text(key) for field, key in _KEYS.items()},
        properties={
            str(name): typed_from_amqp(str(name), value) for name, value in properties.items()
        },
    )


def write_rule(rule: RuleDescription) -> Described:
    """A rule as enumerate-rules gives it: filter, action, name, time of creation."""
    action: Described = Described(_EMPTY_ACTION, [])
    if rule.action is not None:
        action = Described(_SQL_ACTION, [rule.action.expression, _LEVEL])
    return Described(
        _RULE, [_write_filter(rule.filter), action, rule.name, Timestamp(rule.created_at)]
    )


def _write_filter(chosen: Filter) -> Described:
    match chosen:
        case TrueFilter():
            return Described(_TRUE_FILTER, [])  # Rust's decoder takes no fields
        case FalseFilter():
            return Described(_FALSE_FILTER, [])
        case SqlFilter():
            return Described(_SQL_FILTER, [chosen.expression, _LEVEL])
    values: list[Any] = [getattr(chosen, field) for field in _KEYS]
    values.append({name: amqp_from_typed(value) for name, value in chosen.properties.items()})
    return Described(_CORRELATION_FILTER, values)
