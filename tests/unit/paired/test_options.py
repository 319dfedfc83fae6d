"""The options of a paired client: defaults, bounds, and the names of the backlog queues."""

from __future__ import annotations

from typing import Any

import pytest

from postbus.client.backlog_names import backlog_paths
from postbus.paired.options import SendAvailability


def test_r_pair_01_the_defaults() -> None:
    """R-PAIR-01."""
    options = SendAvailability()
    assert options.backlog_queue_count == 10
    assert options.failover_interval == options.ping_primary_interval == 60


@pytest.mark.parametrize(
    ("name", "least", "most", "beyond"),
    [
        ("backlog_queue_count", 1, 500, [0, -1, 1.5, True]),
        ("failover_interval", 0, 3_600, [-1, 3_601]),
        ("ping_primary_interval", 1, 1_800, [0.9, 1_801]),
        ("send_timeout", 0.1, 1e9, [0, -1]),
    ],
)
def test_r_pair_01_an_option_out_of_bounds_is_refused(
    name: str, least: Any, most: Any, beyond: list[Any]
) -> None:
    """R-PAIR-01."""
    for value in (least, most):
        assert getattr(SendAvailability(**{name: value}), name) == value
    for value in beyond:
        with pytest.raises(ValueError, match=name):
            SendAvailability(**{name: value})


def test_r_pair_02_the_backlog_queues_are_named_after_the_primary() -> None:
    """R-PAIR-02."""
    paths = backlog_paths("Contoso.servicebus.windows.net", None, 2)
    assert paths == ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]
    assert backlog_paths("localhost", "site-7", 1) == ["site-7/x-servicebus-transfer/0"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "::1", "[::1]"])
def test_r_pair_02_a_host_without_a_name_needs_the_option(host: str) -> None:
    """R-PAIR-02."""
    with pytest.raises(ValueError, match="primary_name"):
        backlog_paths(host, None, 10)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 201])
def test_a_name_that_no_queue_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="primary_name"):
        SendAvailability(primary_name=name)
