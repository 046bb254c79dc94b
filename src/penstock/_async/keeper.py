"""What a client does beside its consumers: it keeps their leases, and does what is due now and then."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import psycopg

from penstock.concurrency import AsyncBackground, AsyncFlag
from penstock.errors import PenstockError

__all__ = ["AsyncKeeper", "AsyncMaintainer"]

logger = logging.getLogger("penstock")

SHORTEST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 10.0
MAINTAIN_SECONDS = 1.0
# Who closes waits so long for a call that is under way.
CLOSE_SECONDS = 5.0


class Kept(Protocol):
    """A consumer whose leases are kept."""

    def keep_in(self) -> float: ...

    async def extend_leases(self) -> None: ...

    def put_off(self) -> None: ...


class AsyncKeeper:
    """Extends the leases of consumers that ask for it."""

    def __init__(self) -> None:
        self._consumers: set[Kept] = set()
        self._flag = AsyncFlag()
        self._background: AsyncBackground | None = None
        self._stopped = False

    def keep(self, consumer: Kept) -> None:
        """Look after the leases of a consumer, or look again: it has new ones."""
        self._consumers.add(consumer)
        if self._background is None or not self._background.is_alive():
            self._background = AsyncBackground(self._run, "penstock keeper")
        self._flag.set()

    def forget(self, consumer: Kept) -> None:
        self._consumers.discard(consumer)

    async def close(self) -> None:
        self._stopped = True
        self._flag.set()
        if self._background is not None:
            await self._background.end(CLOSE_SECONDS)

    async def _run(self) -> None:
        while not self._stopped:
            pause = min((one.keep_in() for one in tuple(self._consumers)), default=LONGEST_PAUSE_SECONDS)
            await self._flag.wait(min(max(pause, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS))
            self._flag.clear()
            for consumer in tuple(self._consumers):
                if not self._stopped and consumer.keep_in() <= 0:
                    await self._extend_leases(consumer)

    async def _extend_leases(self, consumer: Kept) -> None:
        try:
            await consumer.extend_leases()
        except (PenstockError, psycopg.Error) as exc:
            logger.debug("leases were not extended: %s", exc)
            consumer.put_off()
        except Exception:
            # Whatever is wrong with one of them, the others need their leases.
            logger.exception("leases were not extended")
            consumer.put_off()


class AsyncMaintainer:
    """Calls maintain() about once a second while anybody consumes; many may, one of them does the work."""

    def __init__(self, maintain: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._maintain = maintain
        self._flag = AsyncFlag()
        self._background: AsyncBackground | None = None

    def start(self) -> None:
        if self._background is None or not self._background.is_alive():
            self._flag.clear()
            self._background = AsyncBackground(self._run, "penstock maintainer")

    async def close(self) -> None:
        self._flag.set()
        if self._background is not None:
            await self._background.end(CLOSE_SECONDS)

    async def _run(self) -> None:
        pause = MAINTAIN_SECONDS
        while not await self._flag.wait(pause * random.uniform(0.8, 1.2)):
            pause = MAINTAIN_SECONDS
            try:
                await self._maintain()
            except (psycopg.Error, PenstockError) as exc:
                logger.debug("maintain() failed: %s", exc)
                pause = 5 * MAINTAIN_SECONDS
