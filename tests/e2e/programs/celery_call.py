"""Calls tasks of celery_tasks.py, and prints what they returned as JSON."""

import json
import sys

import celery_tasks

calls, wait = json.loads(sys.argv[1]), sys.argv[2] == "1"
sent = [
    getattr(celery_tasks, each["task"]).apply_async(each["arguments"], **each["options"])
    for each in calls
]
print(json.dumps([each.get(timeout=60) for each in sent] if wait else []))
