"""A program that forks: a client that the parent has used is used by the child, and by the parent again.

forking.py DSN [MODE]; says "ok" when all went well. MODE: calls, consumers, or leaves.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from penstock import Client, watch

PATIENCE_SECONDS = 20


def in_child(function: Callable[[], None]) -> int:
    """Run a function in a forked child; its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def finish(child: int) -> None:
    """Wait for a child that is to end well."""
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"


def session(client: Client) -> int:
    """The session of the server that a call runs on."""
    with client.transaction() as transaction:
        return transaction.connection.info.backend_pid


def calls(dsn: str) -> None:
    """Calls, on both sides at once."""
    with Client(dsn) as client:
        mine = {session(client) for _ in range(3)}
        reading, writing = os.pipe()

        def child() -> None:
            ours = session(client)
            assert ours not in mine, "the child uses the parent's connection"
            for number in range(50):
                client.send("q", ["child", number])
            assert session(client) == ours
            os.write(writing, b"!")

        process = in_child(child)
        for number in range(50):
            client.send("q", ["parent", number])
        os.read(reading, 1)
        finish(process)
        # The end of the child has not ended what the parent has.
        assert session(client) in mine
        client.send("q", ["parent", 50])


def consumers(dsn: str) -> None:
    """A consumer of each, woken by notifications."""
    # A consumer that is not woken finds the message only when its patience ends.
    watch.PAUSES = (60.0,) * 5
    with Client(dsn) as client, Client(dsn) as other:

        def consume_one(queue: str) -> None:
            consumer = iter(client.consume(queue, wait=PATIENCE_SECONDS))
            message = next(consumer)
            message.ack()
            consumer.close()  # type: ignore[attr-defined]

        def take_turns(queue: str) -> float:
            thread = threading.Thread(target=consume_one, args=(queue,))
            thread.start()
            # By then it has found nothing, and waits.
            time.sleep(0.5)
            begin = time.monotonic()
            other.send(queue, 1)
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
            return time.monotonic() - begin

        def check(queue: str) -> None:
            took = take_turns(queue)
            assert took < PATIENCE_SECONDS / 2, f"{os.getpid()} was not woken: {took:.2f} s"

        # The parent listens to this queue too, but is at work at present: the child is to get what comes.
        kept, busy, over = client.consume("kept", batch_size=1), threading.Event(), threading.Event()

        def hold() -> None:
            for message in kept:
                message.ack()
                busy.set()
                over.wait(PATIENCE_SECONDS)

        holding = threading.Thread(target=hold)
        holding.start()
        check("q")
        other.send("kept", "hold")
        assert busy.wait(PATIENCE_SECONDS)
        process = in_child(lambda: check("kept"))
        check("q")
        finish(process)
        begin = time.monotonic()
        over.set()
        kept.stop()
        holding.join(PATIENCE_SECONDS)
    took = time.monotonic() - begin
    assert took < PATIENCE_SECONDS / 2, f"the parent was not woken to end: {took:.2f} s"


def leaves(dsn: str) -> None:
    """A child that closes its client takes nothing from the parent's consumer."""
    with Client(dsn) as client:
        client.send_many("q", range(5))
        got = list[int]()
        for message in client.consume("q", wait=0, batch_size=5):
            if not got:
                finish(in_child(client.close))
            message.ack()
            got.append(message.attempt)
        assert got == [1] * 5, got


def main() -> None:
    dsn, mode = sys.argv[1:]
    {"calls": calls, "consumers": consumers, "leaves": leaves}[mode](dsn)
    print("ok", flush=True)


if __name__ == "__main__":
    main()
