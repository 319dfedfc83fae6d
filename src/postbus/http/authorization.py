"""`<AuthorizationRules>` of a queue or a topic, as the admin clients write and read it (wire §9.4).

The JS client always writes type and `ClaimValue`; the Python one writes what its user gave and
leaves out the rest. There is only one kind of rule, so what is left out is taken to say that.
"""

from typing import Final
from xml.etree.ElementTree import Element

from postbus.errors import InvalidArgument, NotSupported
from postbus.http.notation import INSTANCE, SERVICE_BUS
from postbus.http.problems import xml_text
from postbus.model.authorization import RULES_MAX, AuthorizationRule, Right, Rules, read_right

_TYPE: Final = "SharedAccessAuthorizationRule"
_CLAIM_TYPE: Final = "SharedAccessKey"
_CLAIM_VALUE: Final = "None"
_TEXTS: Final = (
    *("ClaimType", "ClaimValue", "CreatedTime", "ModifiedTime"),
    *("KeyName", "PrimaryKey", "SecondaryKey"),
)
"""Elements of a rule that hold text. The two times are not read, nor are they in a reply: Azure
leaves them out, and the SDKs' own tests compare what comes back with what they sent."""


def read_rules(element: Element) -> Rules:
    """The rules of a request. Whoever asks replaces all that are there.

    Raises InvalidArgument for what is no rule, NotSupported for one of another kind.
    """
    if len(element) > RULES_MAX:
        raise InvalidArgument(f"There are {len(element)} authorization rules; {RULES_MAX} allowed.")
    return tuple(_read_rule(child) for child in element)


def write_rules(rules: Rules) -> str:
    """The element of a reply, keys included: who may read a description may also change it."""
    return f"<AuthorizationRules>{''.join(map(_write_rule, rules))}</AuthorizationRules>"


def _read_rule(element: Element) -> AuthorizationRule:
    if _local_name(element) != "AuthorizationRule":
        raise InvalidArgument(
            f"The element '{_local_name(element)}' is not part of AuthorizationRules."
        )
    # The prefix of the value, if any, was bound by whoever wrote it; the parser has forgotten it.
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
