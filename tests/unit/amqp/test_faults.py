"""Peer faults know their wire code and how much they tear down."""

from __future__ import annotations

import pytest

from postbus.amqp import faults


@pytest.mark.parametrize(
    ("fault", "condition", "scope"),
    [
        (faults.DecodeError, "amqp:decode-error", "connection"),
        (faults.FramingError, "amqp:connection:framing-error", "connection"),
        (faults.NotAllowed, "amqp:not-allowed", "connection"),
        (faults.IdleTimeout, "amqp:resource-limit-exceeded", "connection"),
        (faults.WindowViolation, "amqp:session:window-violation", "session"),
        (faults.HandleInUse, "amqp:session:handle-in-use", "session"),
        (faults.UnattachedHandle, "amqp:session:unattached-handle", "session"),
        (faults.MessageSizeExceeded, "amqp:link:message-size-exceeded", "link"),
        (faults.TransferLimitExceeded, "amqp:link:transfer-limit-exceeded", "link"),
    ],
)
def test_a_fault_has_a_condition_a_scope_and_words(
    fault: type[faults.ProtocolError], condition: str, scope: str
) -> None:
    error = fault("what happened")
    assert (error.condition, error.scope, error.text) == (condition, scope, "what happened")
    assert str(error) == "what happened"


def test_a_fault_may_be_given_another_condition() -> None:
    assert faults.LinkError("stolen", "amqp:link:stolen").condition == "amqp:link:stolen"
    assert faults.LinkError.condition == "amqp:not-allowed"
