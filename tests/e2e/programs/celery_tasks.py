"""A Celery application as its users write one: two variables say where its broker and results are.

celery -A celery_tasks worker
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    broker_transport_options={
        "wait_time_seconds": 1,
        "peek_lock_seconds": int(os.environ.get("LOCK_S", "60")),
        "use_lock_renewal": "LOCK_S" in os.environ,
    },
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ["QUEUE"],
)


def note(what: str) -> None:
    """Leave a line for the test to find: tasks may run more often than their results tell."""
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{what}\n")


@app.task
def add(a: int, b: int) -> int:
    note(f"add {a} {b}")
    return a + b


@app.task(bind=True, max_retries=5)
def flaky(self: Any, failures: int) -> int:
    note("flaky")
    tries: int = self.request.retries
    if tries < failures:
        raise self.retry(countdown=1)
    return tries


@app.task
def tell_time() -> float:
    note("tell_time")
    return time.time()


@app.task(acks_late=True)
def linger(seconds: float) -> str:
    note("linger begins")
    time.sleep(seconds)
    note("linger ends")
    return "done"
