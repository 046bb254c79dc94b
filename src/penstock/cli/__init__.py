"""The command `penstock`: data goes to stdout, all else to stderr.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 nothing there, 130 interrupted.
"""

from __future__ import annotations

import click

from penstock import __version__

from .lazy import Entry, LazyGroup

__all__ = ["main"]

RUN = "Run"
QUEUES = "Topics and queues"
MESSAGES = "Messages"
TASKS = "Tasks"
WATCH = "Watch"
DATABASE = "Database"

COMMANDS = {
    "up": Entry(RUN, "up", "Run a server for development or a small box."),
    "worker": Entry(RUN, "worker", "Run the tasks of an app."),
    "maintain": Entry(RUN, "maintain", "Do what is due now and then."),
    "topic": Entry(QUEUES, "topic", "Create, list, show and delete topics."),
    "queue": Entry(QUEUES, "queue", "Create, list, alter, pause and delete queues; grant rights."),
    "publish": Entry(MESSAGES, "publish", "Publish messages to a topic."),
    "send": Entry(MESSAGES, "publish", "Send messages to one queue."),
    "consume": Entry(MESSAGES, "consume", "Take messages from a queue."),
    "peek": Entry(MESSAGES, "peek", "Look at the next messages of a queue without taking them."),
    "message": Entry(MESSAGES, "message", "List, show, explain and cancel messages."),
    "dlq": Entry(MESSAGES, "dlq", "List, show, requeue and purge dead letters."),
    "schedule": Entry(TASKS, "schedule", "List, run, pause and resume periodic tasks."),
    "workers": Entry(TASKS, "workers", "List the workers."),
    "top": Entry(WATCH, "top", "Watch queues and workers, live."),
    "dashboard": Entry(WATCH, "dashboard", "Serve the dashboard of a database."),
    "stats": Entry(WATCH, "stats", "Count messages, by queue and state."),
    "doctor": Entry(WATCH, "doctor", "Look for what is wrong, and say what to do."),
    "bench": Entry(WATCH, "bench", "Measure this database."),
    "migrate": Entry(DATABASE, "schema", "Install the schema in a database, or upgrade it."),
    "sql": Entry(DATABASE, "schema", "Print the schema as plain SQL for psql."),
    "version": Entry(DATABASE, "schema", "Print the version of the package, and of a database."),
    "completion": Entry(DATABASE, "completion", "Print the completion script for a shell."),
}


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="The database: --dsn, else PENSTOCK_DATABASE_URL, DATABASE_URL, PGHOST and its like, else the "
    "embedded server, which PENSTOCK_EMBEDDED=0 forbids. Exit codes: 0 done, 1 failed, 2 wrong usage, "
    "3 not found, 4 nothing there, 130 interrupted.",
)
@click.version_option(__version__, message="penstock %(version)s")
def main() -> None:
    """Message queues and task queues inside PostgreSQL."""
