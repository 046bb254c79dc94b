"""A tour of the queue in plain SQL, on the embedded server: `make run`.

Starts the server, installs the schema, fans a topic out to two queues, publishes, consumes, lets one message
fail into the dead letters and prints what is where. Then the server stays up until Ctrl-C (or, with `--once`,
the tour ends there).
"""

import shlex
import signal
import sys
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from penstock import schema
from penstock.embedded import find_binaries, shared

ORDERS = [
    {"order": 1, "customer": "acme", "total": 120},
    {"order": 2, "customer": "globex", "total": -1},
    {"order": 3, "customer": "initech", "total": 75},
]


def say(text: str = "") -> None:
    print(text, flush=True)


def publish(connection: psycopg.Connection[Any]) -> None:
    """One topic, two queues: each gets every message."""
    connection.execute("select penstock.create_topic('orders')")
    connection.execute(
        "select penstock.create_queue('billing', 'orders', max_delivery_attempts => 2), "
        "penstock.create_queue('shipping', 'orders')"
    )
    for order in ORDERS:
        row = connection.execute(
            "select penstock.publish_message('orders', %s, tenant => %s)", [Jsonb(order), order["customer"]]
        ).fetchone()
        assert row is not None
        say(f"  published {row[0]}: {order}")


def consume(connection: psycopg.Connection[Any], queue: str) -> None:
    """Take what is there; a bill below zero fails, twice, and then it is a dead letter."""
    while messages := connection.execute(
        "select message_id, payload, consumer_token, delivery_attempts "
        "from penstock.consume_messages_batch(%s, batch_size => 10)",
        [queue],
    ).fetchall():
        for message_id, payload, token, attempt in messages:
            if queue == "billing" and payload["total"] < 0:
                connection.execute(
                    "select penstock.nack_message(%s, %s, %s, error => %s)",
                    [queue, message_id, token, f"cannot bill {payload['total']}"],
                )
                say(f"  {queue}: message {message_id} failed, attempt {attempt}")
            else:
                connection.execute("select penstock.ack_message(%s, %s, %s)", [queue, message_id, token])
                say(f"  {queue}: message {message_id} done")


def show(connection: psycopg.Connection[Any]) -> None:
    """What is where now."""
    columns = ["queue_name", "pending_count", "processing_count", "completed_count", "dead_count"]
    say("  " + "".join(f"{column:>18}" for column in columns))
    for row in connection.execute(
        f"select {', '.join(columns)} from penstock.get_queue_statistics() where queue_name = any(%s)",
        [["billing", "shipping"]],
    ):
        say("  " + "".join(f"{value!s:>18}" for value in row))
    for name, message_id, reason, error in connection.execute(
        "select queue_name, message_id, reason, last_error from penstock.list_dlq_messages('billing')"
    ):
        say(f"  dead letter: message {message_id} of {name}, {reason}: {error}")


def main(*, once: bool) -> None:
    with shared() as server:
        dsn = server.dsn()
        with psycopg.connect(dsn, autocommit=True) as connection:
            version = schema.install(connection).after.package_version
            say(f"PostgreSQL {server.version} is up, the schema of Penstock {version} is installed.")
            say("\nA topic with two queues; every message goes to both:")
            publish(connection)
            say("\nTwo consumers; a bill that cannot be paid fails twice:")
            consume(connection, "billing")
            consume(connection, "shipping")
            say("\nWhat is where:")
            show(connection)
        if once:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        say(f"\nThe server runs until Ctrl-C. Its DSN:\n\n  {dsn}\n")
        say("Try, in another terminal:\n")
        say(f"  {shlex.quote(str(find_binaries().directory / 'psql'))} {shlex.quote(dsn)}")
        say("  select penstock.send_message('shipping', '{\"hello\": \"world\"}');")
        say("  select * from penstock.consume_message('shipping');")
        say("  select * from penstock.get_queue_statistics();")
        say("  select penstock.requeue_dlq_messages('billing');\n")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        say("Stopping the server.")


if __name__ == "__main__":
    try:
        main(once="--once" in sys.argv[1:])
    except KeyboardInterrupt:
        say("Stopped.")
