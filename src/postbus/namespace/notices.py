"""Tell the clients of an entity that it has changed, or is gone."""

from postbus.errors import DetachForced, EntityDisabled, ServiceBusError
from postbus.namespace.entity import Entity


def detach_all(entity: Entity, error: ServiceBusError) -> None:
    """End every link to the entity and to its management node."""
    for link in list(entity.links):
        link.owner.gateway.detach(link, error, entity.path)


def detach_updated(entity: Entity) -> None:
    """End the links that carry messages: what they were attached to is not what it was."""
    for link in entity.message_links():
        status = entity.status
        allowed = status.sends if link.role == "receiver" else status.receives
        error: ServiceBusError = (
            DetachForced(f"The entity '{entity.path}' was updated.")
            if allowed
            else EntityDisabled(entity.path)
        )
        link.owner.gateway.detach(link, error, entity.path)
