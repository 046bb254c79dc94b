"""A tour of the queue on the embedded server: `make run-tour`.

Starts the server, fans a topic out to two queues, publishes, consumes, lets a message fail until it is a dead
letter, and prints the counts. Then the server runs until Ctrl-C (with `--once` the tour ends there).
"""

import logging
import shlex
import signal
import sys

import penstock
from penstock.embedded import find_binaries, shared

ORDERS = [
    {"order": 1, "customer": "acme", "total": 120},
    {"order": 2, "customer": "globex", "total": -1},
    {"order": 3, "customer": "initech", "total": 75},
]


def say(text: str = "") -> None:
    print(text, flush=True)


def publish(queue: penstock.Client) -> None:
    """One topic, two queues: each gets every message."""
    queue.create_topic("orders")
    queue.create_queue("billing", topic="orders", max_delivery_attempts=2)
    queue.create_queue("shipping", topic="orders")
    for order in ORDERS:
        message_id = queue.publish("orders", order, tenant=str(order["customer"]))
        say(f"  published {message_id}: {order}")


def consume(queue: penstock.Client, name: str) -> None:
    """Consume all messages. A bill below zero fails twice, and is a dead letter then."""
    for message in queue.consume(name, wait=0):
        with message:
            if name == "billing" and message.payload["total"] < 0:
                say(f"  {name}: message {message.id} fails, attempt {message.attempt}")
                raise ValueError(f"cannot bill {message.payload['total']}")
            say(f"  {name}: message {message.id} is done")


def show(queue: penstock.Client) -> None:
    """Print the counts of each queue, and the dead letters."""
    say("  queue      pending  processing  completed   dead")
    for name in ("billing", "shipping"):
        for found in queue.get_queue_statistics(name):
            counts = (found.pending_count, found.processing_count, found.completed_count, found.dead_count)
            say(f"  {name:<11}{counts[0]:>7}{counts[1]:>12}{counts[2]:>11}{counts[3]:>7}")
    for letter in queue.list_dlq_messages("billing"):
        say(f"  dead letter: message {letter.message_id}, {letter.reason}: {letter.last_error}")


def main(*, once: bool) -> None:
    # The client logs each failed message with a traceback: on a tour the printed line is enough.
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    with shared() as server:
        dsn = server.dsn()
        with penstock.connect(dsn, install=True) as queue:
            version = queue.schema_version().package_version
            say(f"PostgreSQL {server.version} is up, the schema of Penstock {version} is installed.")
            say("\nA topic with two queues; every message goes to both:")
            publish(queue)
            say("\nTwo consumers; a bill that cannot be paid fails twice:")
            consume(queue, "billing")
            consume(queue, "shipping")
            say("\nWhat is where:")
            show(queue)
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
        say(f"or, in Python ({sys.executable}):\n")
        say("  import penstock")
        say("  queue = penstock.connect()")
        say("  queue.send('shipping', {'hello': 'world'})\n")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        say("Stopping the server.")


if __name__ == "__main__":
    try:
        main(once="--once" in sys.argv[1:])
    except KeyboardInterrupt:
        say("Stopped.")
