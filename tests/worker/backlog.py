"""What stands in front of a task in its queue, and how long the task waits behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.sql.engine import Engine

__all__ = ["fail_once", "fill", "reaches"]


def fill(engine: Engine, queue: str, task_name: str | None, number: int, **arguments: int) -> list[int]:
    """So many messages of a task, or of none."""
    headers = {} if task_name is None else {"headers": {"task": task_name}}
    return engine.send_many(queue, [arguments] * number, **headers)


def fail_once(engine: Engine, queue: str) -> None:
    """Every message that is ready now fails one attempt, and is ready again at once."""
    ((number,),) = engine.query(
        """
        select count(penstock.nack_message(m.queue_name, m.message_id, m.consumer_token, 0, 'failed'))
        from penstock.consume_messages_batch(%s, 'an earlier worker', 60, 10000) m
        """,
        queue,
    )
    assert number > 0


async def reaches(count: Callable[[], int], goal: int, what: str, seconds: float) -> float:
    """Wait until a count is there; how long that took. If it takes too long, say how far the count came."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    while (number := count()) < goal:
        assert loop.time() < began_at + seconds, f"{number} of {goal} within {seconds} s: {what}"
        await asyncio.sleep(0.01)
    return loop.time() - began_at
