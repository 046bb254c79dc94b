"""A program that forks: an app that the parent has used is used by the child, and by the parent again.

forking.py DSN; says "ok" when all went well. Another process has to run the worker.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from penstock import App
from tests.failures.forking import finish, in_child

PATIENCE_SECONDS = 20


def double(x: int) -> int:
    return 2 * x


def main() -> None:
    with App(sys.argv[1]) as app:
        task = app.task(result=True)(double)
        first = task.enqueue(1)
        with suppress(TimeoutError):
            first.result(timeout=0.01)  # it listens from now on

        def child() -> None:
            assert first.result(timeout=PATIENCE_SECONDS) == 2
            handles = [task.enqueue(2), *task.enqueue_many([(3,), (4,)])]
            assert [handle.result(timeout=PATIENCE_SECONDS) for handle in handles] == [4, 6, 8]

        process = in_child(child)
        handles = [task.enqueue(5), *task.enqueue_many([(6,)])]
        assert [handle.result(timeout=PATIENCE_SECONDS) for handle in handles] == [10, 12]
        finish(process)
        # The end of the child has not ended what the parent has.
        assert task.enqueue(7).result(timeout=PATIENCE_SECONDS) == 14
    print("ok", flush=True)


if __name__ == "__main__":
    main()
