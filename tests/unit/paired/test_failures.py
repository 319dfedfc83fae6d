"""Errors of the SDK that no broker can be made to cause at will; the others are provoked in
tests/e2e/test_paired_failures.py."""

from __future__ import annotations

import asyncio
import logging
import ssl

import pytest
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from postbus.paired.failures import Failure, counts, failure_of

LOG = logging.getLogger("quiet")
LOG.disabled = True


@pytest.mark.parametrize(
    ("condition", "failure"),
    [
        ("com.microsoft:timeout", Failure.UNREACHABLE),
        ("amqp:connection:forced", Failure.UNREACHABLE),
        ("amqp:link:detach-forced", Failure.UNREACHABLE),
        ("amqp:socket-error", Failure.UNREACHABLE),
        ("amqp:internal-error", Failure.UNREACHABLE),
        ("com.microsoft:server-busy", Failure.BUSY),
        ("amqp:unauthorized-access", Failure.DENIED),
        ("amqp:resource-limit-exceeded", Failure.FULL),
        ("amqp:link:message-size-exceeded", Failure.TOO_LARGE),
        ("com.microsoft:entity-disabled", Failure.DISABLED),
        ("amqp:not-allowed", Failure.REFUSED),
        ("com.microsoft:argument-error", Failure.REFUSED),
    ],
)
def test_r_pair_04_what_a_condition_means(condition: str, failure: Failure) -> None:
    """R-PAIR-04."""
    raised = AMQPException(condition.encode(), description="why")
    error = PyamqpTransport.create_servicebus_exception(LOG, raised)
    assert failure_of(error) is failure
    assert counts(failure, False) is (failure is Failure.UNREACHABLE)


@pytest.mark.parametrize("inner", [OSError(5), TimeoutError(), ssl.SSLError(1)])
def test_r_pair_04_a_network_error_that_the_sdk_has_no_word_for_counts(inner: Exception) -> None:
    """R-PAIR-04."""
    assert (
        failure_of(PyamqpTransport.create_servicebus_exception(LOG, inner)) is Failure.UNREACHABLE
    )


@pytest.mark.parametrize("error", [ValueError(), TypeError(), asyncio.CancelledError()])
def test_r_pair_04_mistakes_of_the_program_do_not_count(error: BaseException) -> None:
    """R-PAIR-04."""
    assert failure_of(error) is Failure.PROGRAM and not counts(Failure.PROGRAM, True)


def test_r_pair_04_a_busy_server_counts_by_option() -> None:
    """R-PAIR-04."""
    assert counts(Failure.BUSY, True) and not counts(Failure.BUSY, False)
