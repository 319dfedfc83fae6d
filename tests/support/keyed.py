"""A server whose namespace, queue `a` and topic `t` have keys of each kind: who may do what?

Keys of the namespace come from the file of entities; those of the entities are put there by the
official administration client.
"""

from __future__ import annotations

import base64
from pathlib import Path

from azure.servicebus.management import AuthorizationRule

from tests.support.administration import administration_client
from tests.support.carriers import make_local_ca
from tests.support.server import Server


def key(number: int) -> str:
    return base64.b64encode(bytes([number]) * 32).decode()


RULES = {"sends": ["Send"], "listens": ["Listen"], "owns": ["Manage", "Send", "Listen"]}
NAMES = [f"{owner}-{rule}" for owner in ("all", "a", "t") for rule in RULES]
"""`all-sends` is the namespace's, with Send; `a-owns` is that of the queue `a` with every right."""
KEYS = {name: key(number) for number, name in enumerate(NAMES)}
SECONDARY = {name: key(100 + number) for number, name in enumerate(NAMES)}
OTHERS = ("ab", "a/b", "b")
"""Queues that the keys of the queue `a` do not open."""

CONFIG = "".join(
    f'[[namespace.authorization_rules]]\nkey_name = "all-{name}"\nrights = {rights}\n'
    f'primary_key = "{KEYS[f"all-{name}"]}"\nsecondary_key = "{SECONDARY[f"all-{name}"]}"\n'
    for name, rights in RULES.items()
)


def keyed_server(folder: Path) -> Server:
    config = folder / "postbus.toml"
    config.write_text(CONFIG)
    data = folder / "data"
    make_local_ca(data)
    server = Server(data, "--config", str(config)).start()
    with administration_client(server.connection_string, retry_total=0) as admin:
        admin.create_queue("a", authorization_rules=rules_of("a"))
        for name in OTHERS:
            admin.create_queue(name)
        admin.create_topic("t", authorization_rules=rules_of("t"))
        admin.create_subscription("t", "s")
        admin.create_topic("t2")
        admin.create_subscription("t2", "s")
    return server


def rules_of(owner: str) -> list[AuthorizationRule]:
    return [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            key_name=f"{owner}-{name}",
            primary_key=KEYS[f"{owner}-{name}"],
            secondary_key=SECONDARY[f"{owner}-{name}"],
            rights=list(rights),
        )
        for name, rights in RULES.items()
    ]
