"""Where messages are to be forwarded to: it must be there, and be the caller's to manage."""

from dataclasses import replace
from typing import TypeVar

from postbus.http.caller import SUPPLEMENTS, Asked
from postbus.http.namespace import Namespace
from postbus.http.problems import HttpProblem
from postbus.model.description import QueueDescription
from postbus.model.fields import QUEUE
from postbus.model.subscription import SubscriptionDescription

D = TypeVar("D", QueueDescription, SubscriptionDescription)


async def with_destinations(description: D, namespace: Namespace, asked: Asked) -> D:
    """The description with its destinations as they call themselves.

    An entity may forward to itself, as in Azure (semantics part A §5.2): the hops of a message are
    counted, so that none goes round for ever. Raises Unauthorized, or 400 for one that is missing.
    """
    found: dict[str, str] = {}
    for element in SUPPLEMENTS:
        attribute = str(QUEUE.fields[element].attribute)
        name = getattr(description, attribute)
        if name is None:
            continue
        await asked.caller.require_destination(element, name, asked.site)
        entity = namespace.entity(name)
        if entity is None:
            raise HttpProblem(
                400,
                f"The auto forwarding destination entity '{name}' does not exist ('{element}').",
                sub_code=40400,
            )
        found[attribute] = entity.name
    return replace(description, **found)
