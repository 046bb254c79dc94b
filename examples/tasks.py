"""A tour of tasks on the embedded server: `python examples/tasks.py`.

Starts the server and a worker, enqueues tasks, waits for a result and for a group, lets a task fail until it
is a dead letter, and kills a worker while it works. Then a worker runs until Ctrl-C (with `--once` the tour
ends there).
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import penstock
from penstock.embedded import shared

app = penstock.App()


def say(text: str = "") -> None:
    print(text, flush=True)


@app.task(max_attempts=3, retry_delays=1)
async def send_mail(context: penstock.TaskContext, to: str) -> None:
    say(f"  mail to {to}, attempt {context.attempt} of {context.max_attempts}")
    if "@" not in to:
        raise ValueError(f"not an address: {to}")


@app.task(result=True)
def count_words(text: str) -> int:
    return len(text.split())


@app.task
async def total(text: str, results: Sequence[int] = ()) -> None:
    say(f"  words of {text}: {' + '.join(map(str, results))} = {sum(results)}")


@app.task(queue="slow")
async def work(context: penstock.TaskContext, seconds: float) -> None:
    say(f"  begun in process {os.getpid()}, delivery {context.attempt}")
    await asyncio.sleep(seconds)
    say(f"  done in process {os.getpid()}")


@app.periodic(every=1)
def tick(context: penstock.TaskContext) -> None:
    context.logger.debug("tick")


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """`penstock worker tasks:app`, with a short lease, so that the tour waits only briefly after the kill."""
    command = [sys.executable, "-m", "penstock.cli", "worker", "tasks:app", "--lease", "2"]
    process = subprocess.Popen(
        [*command, "--log-level", "error"], cwd=Path(__file__).parent, start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def until_idle(queue_name: str) -> None:
    """Wait until no group is incomplete, and no task is pending or runs."""
    while True:
        found = app.client.get_queue_statistics(queue_name)[0]
        if not app.client.list_groups() and found.pending_count + found.processing_count == 0:
            return
        time.sleep(0.05)


def until_dead(queue_name: str, number: int) -> list[penstock.DeadLetter]:
    while len(letters := app.client.list_dlq_messages(queue_name)) < number:
        time.sleep(0.1)
    return letters


def until_begun(handle: penstock.Handle[None], attempt: int) -> None:
    while True:
        found = handle.details()
        if found is not None and found.state == "active" and found.delivery_attempts == attempt:
            return
        time.sleep(0.05)


def tour() -> None:
    with worker() as first:
        say("A task with a result, and a group with one that follows:")
        say(f"  words: {count_words.enqueue('to be or not to be').result(timeout=60)}")
        lines = ["now is the winter", "of our discontent"]
        following = total.call("Richard III")
        app.enqueue_group([count_words.call(line) for line in lines], callback=following)
        until_idle("default")

        say("\nOne that works, and one that fails three times and is a dead letter then:")
        send_mail.enqueue("ada@example.org")
        send_mail.enqueue("nobody")
        for letter in until_dead("default", 1):
            say(f"  dead letter: {letter.payload}, {letter.reason}")

        say("\nA worker is killed while it works; another one takes over when the lease ends:")
        handle = work.enqueue(1)
        until_begun(handle, 1)
        time.sleep(0.3)  # so that the worker has printed its line
        first.send_signal(signal.SIGKILL)
    with worker():
        until_begun(handle, 2)
        until_idle("slow")


def stay(dsn: str) -> None:
    with worker():
        # Not before, because the worker would inherit the setting.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        say(f"\nA worker runs until Ctrl-C, on this database:\n\n  {dsn}\n")
        say(f"Try, in another terminal, in {Path(__file__).parent} ({sys.executable}):\n")
        say("  from tasks import app, send_mail, work")
        say("  send_mail.enqueue('bob@example.org')")
        say("  work.enqueue(seconds=5)")
        say("  app.client.list_workers()")
        say("  app.add_retries(send_mail, 1)\n")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        say("Stopping the worker and the server.")


def main(*, once: bool) -> None:
    with shared() as server:
        os.environ["PENSTOCK_DATABASE_URL"] = dsn = server.dsn()
        with penstock.connect(dsn, install=True) as queue:
            for name in ("default", "slow", "count_words"):
                queue.declare_queue(name)
                queue.purge_dlq(name)
        with app.connected_to(dsn):
            tour()
        if not once:
            stay(dsn)


if __name__ == "__main__":
    try:
        main(once="--once" in sys.argv[1:])
    except KeyboardInterrupt:
        say("Stopped.")
