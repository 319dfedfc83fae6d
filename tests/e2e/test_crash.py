"""kill -9, again and again, under load: nothing acknowledged is lost, nothing removed comes back.

This proves that recovery is right. That an acknowledgement waits for the disk a kill cannot show,
for the page cache survives it; `tests/contract` checks that every commit ends with a sync.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.churn import Churn, ChurnedQueue
from tests.e2e.storm import KILLS, Storm, seed_of_storm
from tests.support.administration import Administration
from tests.support.bus import Bus
from tests.support.server import Server


@pytest.mark.parametrize("kills", KILLS)
async def test_nothing_acknowledged_is_lost_and_nothing_removed_returns(
    server: Server, open_bus: Callable[..., Bus], kills: int
) -> None:
    """R-SETTLE-01, R-SETTLE-09, R-SETTLE-10; R-PART-04 on the partitioned one of them."""
    administration = Administration(server.connection_string)
    queues = [
        administration.make_queue(max_delivery_count=1000, enable_partitioning=partitioned)
        for partitioned in (False, False, True)
    ]
    administration.close()
    storm = Storm(server, open_bus, seed_of_storm(), queues, queues)
    await storm.rage(kills, *(Churn(storm, ChurnedQueue(f"churn-{n}")) for n in range(2)))
    storm.check(await storm.inventory(), kills)
