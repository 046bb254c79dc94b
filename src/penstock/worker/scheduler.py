"""Placeholder until the real one is written (pool5: overwrite this file)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock._async.client import AsyncClient
from penstock.tasks.periodic import Periodic


class Scheduler:
    def __init__(self, client: AsyncClient, periodics: Sequence[Periodic]) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()
