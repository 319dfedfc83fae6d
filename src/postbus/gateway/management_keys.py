"""What each operation of `$management` can be asked: the keys of its request (wire §6.2).

A key that is not here is refused by name. Whoever sends one expects something of it, and would not
hear that nothing came of it. A null asks for nothing, and may stand under any key.
"""

from typing import Final

KEYS: Final[dict[str, frozenset[str]]] = {
    operation: frozenset(keys.split())
    for operation, keys in {
        "renew-lock": "lock-tokens",
        "peek-message": "from-sequence-number message-count session-id omit-message-body",
        "schedule-message": "messages",
        "cancel-scheduled-message": "sequence-numbers",
        "receive-by-sequence-number": "sequence-numbers receiver-settle-mode session-id",
        "update-disposition": (
            "disposition-status lock-tokens deadletter-reason deadletter-description"
            " properties-to-modify session-id"
        ),
        "batch-delete-messages": "message-count enqueued-time-utc session-id",
        "renew-session-lock": "session-id",
        "set-session-state": "session-id session-state",
        "get-session-state": "session-id",
        # Java names the last session it was told of, which is the place that `skip` says.
        "get-message-sessions": "last-updated-time skip top last-session-id",
        "add-rule": "rule-name rule-description",
        "remove-rule": "rule-name",
        "enumerate-rules": "skip top",
    }.items()
}

# The keys of maps inside of these.
SCHEDULED_KEYS: Final = frozenset(
    # All but the first repeat what the message says, for a front end that does not look into it.
    {"message", "message-id", "session-id", "partition-key", "via-partition-key"}
)
RULE_KEYS: Final = frozenset({"rule-name", "sql-filter", "correlation-filter", "sql-rule-action"})
SQL_KEYS: Final = frozenset({"expression"})
