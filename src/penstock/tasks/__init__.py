"""Tasks: functions that run in a worker, enqueued as messages."""
