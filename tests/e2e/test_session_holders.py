"""What is done to a session over `$management` is for the connection that holds it."""

from collections.abc import Callable

import pytest

from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.transacting import Refused, Transacting
from tests.support.waiting import until_blocking

GONE = 410


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    return make_server().start()


def test_who_has_lost_a_session_does_not_act_for_its_next_holder(server: Server) -> None:
    administration = Administration(server.connection_string)
    queue = administration.make_queue(requires_session=True, lock_s=5)
    asked = {"session-id": "a"}
    with Transacting(server) as before, Transacting(server) as after:
        before.receiver(queue, session_id="a")
        status, _ = before.manage(queue, "renew-session-lock", asked)
        assert status == 200

        def taken_over() -> bool:
            try:
                after.receiver(queue, session_id="a")
            except Refused:
                return False
            return True

        until_blocking("the lock has run out", taken_over)
        state = {**asked, "session-state": b"not mine"}
        assert before.manage(queue, "renew-session-lock", asked)[0] == GONE
        assert before.manage(queue, "set-session-state", state)[0] == GONE
        assert before.manage(queue, "get-session-state", asked)[0] == GONE
        numbers = {"sequence-numbers": [1], "receiver-settle-mode": 1, **asked}
        assert before.manage(queue, "receive-by-sequence-number", numbers)[0] == GONE
        assert after.manage(queue, "renew-session-lock", asked)[0] == 200
        status, answer = after.manage(queue, "get-session-state", asked)
        assert (status, answer) == (200, {"session-state": None})
