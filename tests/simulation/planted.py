"""All planted faults, by the parts of the world in which they are looked for."""

from __future__ import annotations

from tests.simulation.duplicates.faults import DUPLICATE_FAULTS
from tests.simulation.queues.faults import QUEUE_FAULTS
from tests.simulation.run import QUEUES, SESSIONS, TOPICS
from tests.simulation.sessions.faults import SESSION_FAULTS
from tests.simulation.topics.faults import TOPIC_FAULTS
from tests.simulation.transactions.faults import TRANSACTION_FAULTS

FAULTS = {
    QUEUES: QUEUE_FAULTS,
    TOPICS: TOPIC_FAULTS,
    SESSIONS: SESSION_FAULTS + DUPLICATE_FAULTS + TRANSACTION_FAULTS,
}
