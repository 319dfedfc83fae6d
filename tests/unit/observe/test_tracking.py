"""What a client was told can be found in the log (R-SETTLE-02)."""

from __future__ import annotations

import re

from postbus.errors import EntityNotFound
from postbus.observe.tracking import TrackingIds

T0 = 1_591_401_661_500


def test_a_refusal_ends_with_id_entity_and_time_as_azure_writes_them() -> None:
    tracking = TrackingIds("sbemulatorns", lambda: T0, lambda: "0a1b").track("orders")
    assert tracking.describe(EntityNotFound("sb://localhost/orders")) == (
        "The messaging entity 'sb://localhost/orders' could not be found. "
        "TrackingId:0a1b_G0, SystemTracker:sbemulatorns:orders, Timestamp:2020-06-06T00:01:01"
    )


def test_without_an_entity_the_namespace_is_named() -> None:
    tracking = TrackingIds("ns", lambda: 0, lambda: "x").track()
    assert tracking.describe("No.") == (
        "No. TrackingId:x_G0, SystemTracker:ns, Timestamp:1970-01-01T00:00:00"
    )


def test_a_clients_own_words_are_quoted_back_only_so_far() -> None:
    tracking = TrackingIds("ns", lambda: 0, lambda: "x").track()
    described = tracking.describe(EntityNotFound("q" * 1_000_000))
    assert len(described) < 2_200
    assert "… TrackingId:x_G0" in described


def test_ids_are_guids_and_differ() -> None:
    ids = TrackingIds("ns", lambda: 0)
    first, second = ids.track().id, ids.track().id
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_G0", first)
    assert first != second
