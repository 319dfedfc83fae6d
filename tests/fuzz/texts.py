"""Text that comes from outside: tokens, files of entities and settings, ATOM documents."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from postbus.amqp.faults import DecodeError
from postbus.amqp.sasl_plain import parse_plain
from postbus.auth.authority import Authority, resource_path
from postbus.auth.jwks import SigningKeys
from postbus.auth.jwt import Issuer
from postbus.auth.keyring import AccessKey
from postbus.config.content import Content, Subscription
from postbus.config.emulator import write_emulator
from postbus.config.mistakes import ConfigError, ConfigMistake
from postbus.config.planning import Limits, make_plan
from postbus.config.steps import StepReport
from postbus.config.toml import write_toml
from postbus.errors import ServiceBusError
from postbus.http.atom import Entry, Site, entry_document, read_content
from postbus.http.description_xml import description_xml, form_of, read_values
from postbus.http.rule_xml import read_rule, rule_xml
from postbus.model.address import resolve_path
from postbus.model.description import (
    Description,
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.fields import QUEUE, SUBSCRIPTION, TOPIC, Form, describe
from postbus.model.rule import RuleDescription
from postbus.ops.config_file import load_config
from postbus.settings import Settings, SettingsError, read_table

_WRITTEN_AGAIN_MAX = 20_000
"""Bytes of a file that is taken for the whole round; a larger one is only read."""

KEY = "key of the fuzz target"
KEY_NAME = "RootManageSharedAccessKey"
NOW = 1_700_000_000_000
ENTITY_KEY = "key of an entity of the fuzz target"
# Whose other half nobody has: the sample in the corpus was signed once.
_JWK_SET = (
    b'{"keys": [{"kty": "EC", "crv": "P-256", "kid": "fuzz",'
    b' "x": "b7San9LGv3rRmnEyUAXsZPVHyIBAMsv6FPTmCS9VK-Q",'
    b' "y": "nUVjTCKs6avRHbOCGk5Qr1GEBL9Aj18csDeGvZvWcfA"}]}'
)
_SIGNING_KEYS = SigningKeys("fuzz", lambda: NOW)
_SIGNING_KEYS.take(_JWK_SET)
_AUTHORITY = Authority([AccessKey(KEY_NAME, (KEY,))], Issuer("i", "a", "roles", _SIGNING_KEYS))
_AUTHORITY.learn("orders", [AccessKey("own", (ENTITY_KEY,))])
_AUTHORITY.learn("orders/eu", [])
_SITE = Site("http://localhost:5300", "ns", "2024-05")
FORMS: dict[str, tuple[Form, Description]] = {
    "queue": (QUEUE, QueueDescription()),
    "topic": (TOPIC, TopicDescription()),
    "subscription": (SUBSCRIPTION, SubscriptionDescription()),
}


def run_token(data: bytes) -> None:
    """A token as it comes over AMQP or HTTP, a PLAIN response, and an audience."""
    with suppress(DecodeError, ServiceBusError):
        plain = parse_plain(data)
        _AUTHORITY.verify_plain(plain.username, plain.password)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    audience = resource_path(text)
    with suppress(ServiceBusError):
        resolve_path(audience)
    claims = _AUTHORITY.verify(text, "orders/messages", NOW)
    claims.covers(audience)
    assert claims.expires_at > NOW
    assert _AUTHORITY.review(claims) == claims
    if claims.made_by is not None and claims.made_by.owner:
        # However a token of the queue's key is bent, it is for that queue.
        assert not claims.covers("orders/eu") and not claims.covers("")


def run_config(data: bytes) -> None:
    """A file given by --config, read by both that read it. Each refuses by its own exception."""
    name = "Config.json" if data.lstrip()[:1] == b"{" else "postbus.toml"
    with tempfile.TemporaryDirectory(prefix="postbus-fuzz-") as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        with suppress(SettingsError):
            read_table(path)
        with suppress(SettingsError):
            Settings.load({"config": path})
        config = load_config(path)
        content = _checked(config.content)
        if len(data) > _WRITTEN_AGAIN_MAX:
            return
        # What was read can be written, and is read again as the same.
        path = Path(folder, "again.toml")
        text = write_toml("again", content, keys=True)
        path.write_text(text, "utf-8")
        again = load_config(path).content
        assert write_toml("again", again, keys=True) == text
        text, _ = write_emulator("again", content)
        path.write_text(text, "utf-8")
        twice, lost = write_emulator("again", load_config(path).content)
        assert (twice, lost) == (text, [])
    limits = Limits(1_000_000, 1_000_000, 1_000_000, 1_000_000)
    with suppress(ConfigMistake):
        assert make_plan(again, content, limits, prune=True).steps == ()
    with suppress(ConfigMistake):
        for step in make_plan(content, Content(), limits, prune=False).steps:
            list(StepReport.of(step).lines())


def _checked(content: Content) -> Content:
    for each in content.entities():
        assert each.name
        each.description.validate()
    for receiver in content.receivers():
        receiver.description.validate()
        if isinstance(receiver, Subscription):
            for rule in receiver.rules or ():
                assert RuleDescription.from_json(rule.to_json()) == rule
    return content


def entry_of(content: str) -> bytes:
    return entry_document(Entry("orders", "orders", NOW, NOW, content), _SITE).encode()


def description_entry(form: Form, description: Description) -> bytes:
    told = {name: QueueCounts() if name == "CountDetails" else 1 for name in form.told}
    return entry_of(description_xml(form, description, told, _SITE))


def run_atom(data: bytes) -> None:
    """A description: what is taken is given back so that it is taken the same again."""
    content = read_content(data)
    form = form_of(content, QUEUE, TOPIC, SUBSCRIPTION)
    blank = next(default for each, default in FORMS.values() if each is form)
    description = describe(form, read_values(form, content), blank)
    again = read_content(description_entry(form, description))
    assert describe(form, read_values(form, again), blank) == description


def run_rule(data: bytes) -> None:
    """A rule, of a name in its path or in itself: taken the same again, however it is given back,
    and kept the same by the catalog."""
    content = read_content(data)
    rule = read_rule(content, None, NOW)
    for stored in (True, False):
        again = read_content(entry_of(rule_xml(rule, stored=stored)))
        assert read_rule(again, rule.name, NOW) == rule
    assert RuleDescription.from_json(rule.to_json()) == rule


CONFIG_REFUSALS = (ConfigError,)

# A variable of whoever runs this would be a setting beside those in the file.
for _name in [name for name in os.environ if name.startswith("POSTBUS_")]:
    del os.environ[_name]
