"""A wall clock that was wrong for a moment locks nobody out, and ends no connection."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postbus.amqp.frames.framing import EMPTY_FRAME
from postbus.amqp.limits import Limits
from tests.support import raw_client
from tests.support.access import Answer, Caller, ask, sas
from tests.support.jwt_tokens import AUDIENCE, ISSUER, RSA, claims, key_set, sign
from tests.support.raw_client import RawClient, now_ms
from tests.support.server import Server

PROGRAM = Path(__file__).parent / "programs" / "serve_with_clock.py"
TWO_HOURS_MS = 7_200_000
KEY = ("RootManageSharedAccessKey", "SAS_KEY_VALUE")
QUEUE = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)


class Machine(Server):
    """A server, and the wall clock of the machine it runs on."""

    def __init__(self, data: Path, *arguments: str) -> None:
        super().__init__(data, *arguments)
        self._off_by = data.with_name("off_by")
        self.set_clock(0)

    def _command(self) -> list[str]:
        return [sys.executable, str(PROGRAM), str(self._off_by), *super()._command()[1:]]

    def set_clock(self, off_by_ms: int) -> None:
        written = self._off_by.with_suffix(".new")
        written.write_text(str(off_by_ms))
        os.replace(written, self._off_by)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    keys = tmp_path / "keys.json"
    keys.write_bytes(key_set(RSA))
    jwt = ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-jwks", str(keys))
    machine = Machine(tmp_path / "data", *jwt)
    try:
        yield machine.start()
    finally:
        machine.discard()


def json_web_token() -> str:
    return sign(claims(now_ms() // 1_000, roles=["Azure Service Bus Data Owner"]))


def over_http(machine: Machine, token: str) -> Answer:
    return ask(machine, "GET", "orders", token)


def over_amqp(machine: Machine, token: str) -> Answer:
    with Caller(machine) as caller:
        answer = caller.put_token("sb://localhost/orders", token)
        if answer.status == 202:
            caller.sender("orders")  # raises where the link is refused
            caller.call("orders/$management", {"operation": "com.microsoft:peek-message"}, {})
        return answer


def assert_tokens_open(machine: Machine) -> None:
    for token in (sas(*KEY), f"Bearer {json_web_token()}"):
        assert over_http(machine, token).status == 200
    for token in (sas(*KEY), json_web_token()):
        assert over_amqp(machine, token).status == 202


def test_a_clock_that_was_ahead_for_a_moment_lets_no_token_expire(machine: Machine) -> None:
    assert ask(machine, "PUT", "orders", sas(*KEY), QUEUE).status == 201
    machine.set_clock(TWO_HOURS_MS)
    # By the wall clock they are over, and the broker's time goes along and is written down.
    assert over_http(machine, sas(*KEY)).status == 401
    assert over_amqp(machine, sas(*KEY)).status == 401
    lasting = sas(*KEY, lasts_s=36_000)
    assert ask(machine, "POST", "orders/messages", lasting, b"sent ahead").status == 201
    machine.set_clock(0)
    assert_tokens_open(machine)
    for end in (machine.stop, machine.kill):
        end()
        machine.start()
        assert "clock is behind what is stored" in machine.log.read_text()
        assert_tokens_open(machine)


def test_a_token_that_is_over_by_the_wall_clock_stays_refused_after_a_step_back(
    machine: Machine,
) -> None:
    assert ask(machine, "PUT", "orders", sas(*KEY), QUEUE).status == 201
    machine.set_clock(-TWO_HOURS_MS)
    assert over_http(machine, sas(*KEY, lasts_s=-TWO_HOURS_MS / 1_000 - 60)).status == 401
    assert over_amqp(machine, sas(*KEY, lasts_s=-TWO_HOURS_MS / 1_000 - 60)).status == 401
    # An issuer two hours ahead of us has made a token that is not valid yet.
    assert "not valid yet" in over_http(machine, f"Bearer {json_web_token()}").text


def test_a_clock_that_is_set_ends_no_connection(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats count seconds: by a clock put forward the peer would have been silent for hours,
    and by one put back none would go out for hours."""
    often = Limits(idle_timeout_ms=200, unsettled_incoming_max=10)
    monkeypatch.setattr(raw_client, "Limits", lambda **_: often)
    with RawClient(machine) as client:
        client.socket.settimeout(10)
        for off_by_ms in (0, TWO_HOURS_MS, 0, -TWO_HOURS_MS):
            machine.set_clock(off_by_ms)
            beats = 0
            while beats < 3:
                data = client.socket.recv(65_536)
                assert data, "the connection was closed"
                client.core.receive_data(data, now_ms())
                client.write()
                assert not client.core.closed
                beats += data.count(EMPTY_FRAME)
