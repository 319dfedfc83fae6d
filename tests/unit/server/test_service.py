"""What is left of a connection that is gone."""

import gc
import weakref
from typing import Any, cast

from postbus.server.service import GONE_MIN, Service
from postbus.server.tracking import TrackingIds
from postbus.settings import Settings


class Gone:
    """A gateway whose parts refer to each other, as those of a real one do."""

    def __init__(self) -> None:
        self.part = self


def test_connections_that_are_gone_leave_nothing_behind_for_long() -> None:
    # given a garbage collector that comes by seldom
    nothing = cast(Any, None)
    tracking = TrackingIds("test", lambda: 0, lambda: "id")
    service = Service(nothing, nothing, tracking, lambda: 0, lambda: 0, Settings(), "test")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # when connections have come and gone
        left = []
        for _ in range(GONE_MIN):
            gateway = cast(Any, Gone())
            left.append(weakref.ref(gateway))
            service.gateways.add(gateway)
            service.left(gateway)
            del gateway
        # then what was left of them is gone too
        assert sum(each() is not None for each in left) <= 1
    finally:
        if was_enabled:
            gc.enable()
