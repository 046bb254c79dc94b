"""The maintenance of a worker: maintain() examines the worker's queues at once, among thousands of others."""

from __future__ import annotations

from typing import Any, cast

import psycopg

from penstock import AsyncClient
from penstock.worker.leases import Leases
from penstock.worker.maintainer import Maintainer


class NoLeases:
    async def catch_up(self) -> None:
        """Nothing is held."""


async def test_the_floor_of_the_worker_rises_among_many_queues(
    sql18: psycopg.Connection[Any], database18: str
) -> None:
    sql18.execute("select count(penstock.create_queue('q' || n)) from generate_series(1, 2000) n")
    sql18.execute("select penstock.create_queue('mine')")
    async with AsyncClient(database18, maintain=False) as client:
        maintainer = Maintainer(client, cast(Leases, NoLeases()), queue_names=("mine",))
        await maintainer.run_once()
        for _ in range(3):
            sql18.execute("select penstock.send_messages('mine', array_fill('1'::jsonb, array[100]))")
            sql18.execute(
                """select penstock.ack_messages('mine', array_agg(message_id), array_agg(consumer_token))
                from penstock.consume_messages_batch('mine', 'me', 60, 50)"""
            )
            done = await maintainer.run_once()
            assert ("floor raised", "mine") in [(each.action, each.queue_name) for each in done]
