"""Descriptions of queues, topics and subscriptions as XML, by the tables in `model.fields`.

A reply has all elements in Azure's order. A request may leave out any element, in any order and
under any prefix (wire §9.4). The JS client always writes the type and the `ClaimValue` of an
authorization rule. The Python client writes only the values of its user. There is one kind of rule,
so a missing element means that kind.
"""

from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element

from postbus.errors import InvalidArgument, NotSupported
from postbus.http.atom import (
    COUNTS,
    INSTANCE,
    SERVICE_BUS,
    Site,
    element,
    is_nil,
    local_name,
    service_bus,
    time_text,
)
from postbus.http.problems import xml_text
from postbus.model.address import written
from postbus.model.authorization import RULES_MAX, AuthorizationRule, Right, Rules, read_right
from postbus.model.description import Description, EntityStatus, QueueCounts
from postbus.model.fields import Field, FieldType, Form, Value, read_text
from postbus.model.partitioning import FRAGMENTS
from postbus.model.times import INFINITE, TICKS_PER_MS, format_iso
from postbus.namespace.entities import TopicEntity
from postbus.namespace.entity import Entity

_NEVER_ACCESSED: Final = "0001-01-01T00:00:00Z"

Told = Mapping[str, str | int | QueueCounts]
"""The server's own values of an entity, by element."""


def form_of(content: Element, *forms: Form) -> Form:
    """The kind of entity that is described. Raises InvalidArgument for any other element."""
    name = local_name(content)
    for form in forms:
        if form.element == name:
            return form
    expected = " or a ".join(f"'{form.element}'" for form in forms)
    raise InvalidArgument(f"The content must be a {expected}, not '{name}'.")


def read_values(form: Form, content: Element) -> dict[str, Value]:
    """The values of a description, by element. Raises InvalidArgument that names the mistake."""
    values: dict[str, Value] = {}
    for name, child in children(content, form.element).items():
        if name in form.told:
            continue
        if name not in form.fields:
            raise InvalidArgument(f"The element '{name}' is not part of a {form.element}.")
        field = form.fields[name]
        if field.kind is FieldType.DEFAULT_RULE or is_nil(child):
            continue
        if field.kind is FieldType.RULES:
            values[name] = read_rules(child)
        else:
            values[name] = read_text(field, text_of(child, field.kind.value))
    return values


def children(parent: Element, what: str) -> dict[str, Element]:
    """The children of an element, by name. Raises InvalidArgument for a duplicate."""
    found: dict[str, Element] = {}
    for child in parent:
        name = local_name(child)
        if name in found:
            raise InvalidArgument(f"The element '{name}' is there twice in a {what}.")
        found[name] = child
    return found


def text_of(child: Element, expected: str) -> str:
    """The text of an element without children. Raises InvalidArgument."""
    if len(child) > 0:
        raise InvalidArgument(f"The element '{local_name(child)}' must hold {expected}.")
    return child.text or ""


def description_xml(form: Form, description: Description, told: Told, site: Site) -> str:
    """A description in a reply to a client of this version of the API."""
    return service_bus(
        form.element,
        "".join(
            _told(field.element, told[field.element])
            if field.kind is FieldType.TOLD
            else _chosen(field, description, site)
            for field in form.order
            if site.shows(field.since)
        ),
    )


def told_of(entity: Entity, counts: QueueCounts) -> Told:
    """The server's own values in the description of any entity."""
    accessed = time_text(entity.accessed_at) if entity.accessed_at else _NEVER_ACCESSED
    return {
        "SizeInBytes": counts.size_bytes,
        "MessageCount": counts.total,
        "CreatedAt": time_text(entity.created_at),
        "UpdatedAt": time_text(entity.updated_at),
        "AccessedAt": accessed,
        "CountDetails": counts,
        "EntityAvailabilityStatus": "Available",
    }


def told_of_topic(topic: TopicEntity, counts: QueueCounts) -> Told:
    return {
        **told_of(topic, counts),
        "SubscriptionCount": len(topic.subscriptions()),
        "SqlFilterCount": topic.sql_filter_count,
        "CorrelationFilterCount": topic.correlation_filter_count,
    }


def _chosen(field: Field, description: Description, site: Site) -> str:
    if field.kind is FieldType.DEFAULT_RULE:
        return ""
    if field.attribute is None:
        return element(field.element, False)
    value = getattr(description, field.attribute)
    if field.kind is FieldType.RULES:
        return write_rules(value)
    if field.kind is FieldType.DURATION:
        return element(field.element, _duration(field, description, value))
    if value is None:
        return ""
    if field.attribute == "max_size_mb" and getattr(description, "enable_partitioning", False):
        value *= FRAGMENTS  # the total (R-PART-10)
    if field.kind is FieldType.ENTITY:
        value = written(value, getattr(description, field.sent), site.address(""))
    return element(field.element, value.value if isinstance(value, EntityStatus) else value)


def _duration(field: Field, description: Description, value_ms: int | None) -> str:
    if field.attribute == "default_ttl_ms":
        return description.default_ttl_text
    return INFINITE if value_ms is None else format_iso(value_ms * TICKS_PER_MS)


def _told(name: str, value: str | int | QueueCounts) -> str:
    return _count_details(name, value) if isinstance(value, QueueCounts) else element(name, value)


def _count_details(name: str, counts: QueueCounts) -> str:
    # The JS client wants exactly one attribute, and the children under the prefix it declares.
    return (
        f'<{name} xmlns:d2p1="{COUNTS}">'
        + element("d2p1:ActiveMessageCount", counts.active)
        + element("d2p1:DeadLetterMessageCount", counts.dead_letter)
        + element("d2p1:ScheduledMessageCount", counts.scheduled)
        + element("d2p1:TransferMessageCount", counts.transfer)
        + element("d2p1:TransferDeadLetterMessageCount", counts.transfer_dead_letter)
        + f"</{name}>"
    )


_TYPE: Final = "SharedAccessAuthorizationRule"
_CLAIM_TYPE: Final = "SharedAccessKey"
_CLAIM_VALUE: Final = "None"
_TEXTS: Final = (
    *("ClaimType", "ClaimValue", "CreatedTime", "ModifiedTime"),
    *("KeyName", "PrimaryKey", "SecondaryKey"),
)
"""Elements of a rule that hold text. The two times are not read, and no reply has them. Azure
leaves them out, and the SDKs' own tests compare the reply with the request."""


def read_rules(element: Element) -> Rules:
    """The rules of a request, which replace all existing rules.

    Raises InvalidArgument for a malformed rule, NotSupported for a rule of another kind.
    """
    if len(element) > RULES_MAX:
        raise InvalidArgument(f"There are {len(element)} authorization rules; {RULES_MAX} allowed.")
    return tuple(_read_rule(child) for child in element)


def write_rules(rules: Rules) -> str:
    """The element of a reply, keys included: a client that may read a description may also change
    it."""
    return f"<AuthorizationRules>{''.join(map(_write_rule, rules))}</AuthorizationRules>"


def _read_rule(element: Element) -> AuthorizationRule:
    if _local_name(element) != "AuthorizationRule":
        raise InvalidArgument(
            f"The element '{_local_name(element)}' is not part of AuthorizationRules."
        )
    # The client bound the prefix of the value, if any; the parser has dropped that binding.
    kind = element.get(f"{{{INSTANCE}}}type", _TYPE).rpartition(":")[2]
    if kind != _TYPE:
        raise NotSupported(f"An authorization rule must be a '{_TYPE}', not '{kind[:64]}'.")
    texts: dict[str, str] = {}
    rights: tuple[Right, ...] = ()
    seen: set[str] = set()
    for child in element:
        name = _local_name(child)
        if name in seen:
            raise InvalidArgument(f"The element '{name}' of an authorization rule is there twice.")
        seen.add(name)
        if name == "Rights":
            rights = tuple(_read_right(each) for each in child)
        elif name in _TEXTS and not len(child):
            texts[name] = (child.text or "").strip()
        else:
            raise InvalidArgument(f"The element '{name}' is not part of an AuthorizationRule.")
    for name, only in (("ClaimType", _CLAIM_TYPE), ("ClaimValue", _CLAIM_VALUE)):
        if (texts.get(name) or only) != only:
            raise NotSupported(
                f"The {name} of an authorization rule must be '{only}', not '{texts[name][:64]}'."
            )
    return AuthorizationRule(
        texts.get("KeyName", ""), rights, texts.get("PrimaryKey", ""), texts.get("SecondaryKey", "")
    )


def _read_right(element: Element) -> Right:
    if _local_name(element) != "AccessRights" or len(element):
        raise InvalidArgument(f"The element '{_local_name(element)}' is not one of AccessRights.")
    try:
        return read_right((element.text or "").strip())
    except ValueError as error:
        raise InvalidArgument(f"An authorization rule is not valid: {error}.") from None


def _write_rule(rule: AuthorizationRule) -> str:
    rights = "".join(
        f"<AccessRights>{str(right.name).capitalize()}</AccessRights>" for right in rule.rights
    )
    return (
        f'<AuthorizationRule i:type="{_TYPE}">'
        f"<ClaimType>{_CLAIM_TYPE}</ClaimType><ClaimValue>{_CLAIM_VALUE}</ClaimValue>"
        f"<Rights>{rights}</Rights>"
        f"<KeyName>{xml_text(rule.key_name)}</KeyName>"
        f"<PrimaryKey>{xml_text(rule.primary_key)}</PrimaryKey>"
        f"<SecondaryKey>{xml_text(rule.secondary_key)}</SecondaryKey>"
        "</AuthorizationRule>"
    )


def _local_name(element: Element) -> str:
    return str(element.tag).removeprefix(f"{{{SERVICE_BUS}}}")
