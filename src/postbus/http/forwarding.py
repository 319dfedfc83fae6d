"""Where messages are to be forwarded to: it must be there, and be the caller's to manage."""

from dataclasses import replace
from typing import Any, TypeVar

from postbus.http.caller import RequestContext
from postbus.http.namespace import Namespace
from postbus.http.problems import HttpProblem
from postbus.model.description import QueueDescription
from postbus.model.fields import FORWARD, FORWARD_DEAD
from postbus.model.subscription import SubscriptionDescription

D = TypeVar("D", QueueDescription, SubscriptionDescription)


async def with_destinations(description: D, namespace: Namespace, asked: RequestContext) -> D:
    """The description with its destinations as they call themselves.

    An entity may forward to itself, as in Azure (semantics A §5.2): the hops of a message are
    counted, so that none goes round for ever. Raises Unauthorized, or 400 for one that is missing.
    """
    found: dict[str, Any] = {}
    for field in (FORWARD, FORWARD_DEAD):
        given = getattr(description, str(field.attribute))
        name = await _found(field.element, given, namespace, asked)
        found[str(field.attribute)] = name
        if given != name:
            # In its own case: the client is given back what it gave.
            found[field.sent] = getattr(description, field.sent) or given
    return replace(description, **found)


async def _found(
    element: str, name: str | None, namespace: Namespace, asked: RequestContext
) -> str | None:
    if name is None:
        return None
    # First: whether an entity is there is for those to know who may manage it.
    await asked.caller.require_destination(element, name, asked.site)
    entity = namespace.entity(name)
    if entity is None:
        raise HttpProblem(
            400,
            f"The auto forwarding destination entity '{name}' does not exist ('{element}').",
            sub_code=40400,
        )
    return entity.name
