"""What strangers are refused does not fill the log at their will."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from postbus.errors import EntityNotFound, InvalidArgument, Unauthorized
from postbus.gateway.refusals import Refusals
from postbus.observe.logs import TrackingIds

T0 = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


def refusals(clock: Clock) -> Refusals:
    return Refusals(TrackingIds("ns", clock, lambda: "id"))


def test_logins_are_logged_once_a_second_and_the_others_counted() -> None:
    clock = Clock()
    made = refusals(clock)
    with capture_logs() as lines:
        for _ in range(1_000):
            made.note_login("PLAIN", Unauthorized("wrong"))
        clock.now += 1_000
        made.note_login("PLAIN", Unauthorized("wrong"))
    assert [(line["event"], line["more"]) for line in lines] == [
        ("login refused", 0),
        ("login refused", 999),
    ]


def test_rejected_deliveries_of_strangers_are_held_back_and_those_of_clients_are_not() -> None:
    made = refusals(Clock())
    with capture_logs() as lines:
        for _ in range(10):
            made.rejected(InvalidArgument("no"), "$cbs", stranger=True)
    assert len(lines) == 1
    with capture_logs() as lines:
        for _ in range(10):
            made.rejected(InvalidArgument("no"), "orders")
    assert len(lines) == 10


@pytest.mark.parametrize(
    ("hostname", "host"),
    [
        ("bus.example.net", "bus.example.net"),
        ("bus.example.net:5671", "bus.example.net"),  # as Go opens connections
        ("[::1]:5672", "[::1]"),
        ("127.0.0.1", "127.0.0.1"),
        (None, "ns"),
        ("", "ns"),
        ("not a host'\n", "ns"),
        ("h" * 254, "ns"),
    ],
)
def test_entities_are_named_by_the_host_that_a_client_connected_to(
    hostname: str | None, host: str
) -> None:
    shared = refusals(Clock())
    said = shared.at(hostname).describe(EntityNotFound("Eu/Orders"), None)
    assert said.startswith(f"The messaging entity 'sb://{host}/Eu/Orders' could not be found. ")
    assert shared.host == "ns"
