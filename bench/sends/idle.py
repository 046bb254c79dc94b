"""Idle consumers of one client: `python -m bench.sends.idle NUMBER`, on the database BENCH_DSN, for ever."""

from __future__ import annotations

import asyncio
import os
import sys

import penstock
from bench.sends.systems import QUEUE


async def consume(client: penstock.AsyncClient) -> None:
    async with client.consume(QUEUE) as consumer:
        async for message in consumer:
            await message.ack()


async def main(number: int) -> None:
    async with penstock.connect_async(os.environ["BENCH_DSN"]) as client, asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(consume(client))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
