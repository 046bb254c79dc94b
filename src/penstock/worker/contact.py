"""The contact of a worker with its database: when it answered last, and why it does not."""

from __future__ import annotations

import logging

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.concurrency import async_sleep, now
from penstock.errors import ConnectionLost, DatabaseUnavailable, PenstockError

__all__ = ["Contact"]

logger = logging.getLogger("penstock.worker")

# Where no other part of the worker has had an answer for so long, the contact asks the database.
QUIET_SECONDS = 3.0
# The database may take so long to answer.
ANSWER_SECONDS = 10.0
STEP_SECONDS = 1.0


class Contact:
    """Collects whether the calls of other parts were answered. Asks the database itself where none calls."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._answered_at = now()
        # Why no message can be claimed, and why the contact's own question was not answered.
        self._claims = self._question = ""
        # Queues whose messages cannot be claimed, and why.
        self._refused: dict[str, str] = {}

    # Called by the fetcher

    def answered(self) -> None:
        self._answered_at = now()
        self._question = ""

    def failed(self, exc: Exception) -> None:
        self._claims = _reason(exc)

    def recovered(self) -> None:
        self._claims = ""

    def refused(self, queue_name: str, exc: Exception) -> None:
        self._refused[queue_name] = f"messages of {queue_name} cannot be claimed: {exc}"

    def claimed(self, queue_name: str) -> None:
        self._refused.pop(queue_name, None)

    @property
    def trouble(self) -> str:
        """Why the worker is not ready; empty where it is."""
        silence = now() - self._answered_at
        if silence > QUIET_SECONDS + ANSWER_SECONDS and not (self._claims or self._question):
            return f"the database has not answered for {silence:.0f} s"
        return self._claims or self._question or "; ".join(self._refused.values())

    async def run(self) -> None:
        """Ask when it is quiet, until this is cancelled."""
        while True:
            await async_sleep(STEP_SECONDS)
            if now() - self._answered_at > QUIET_SECONDS:
                await self.run_once()

    async def run_once(self) -> None:
        """Ask the database one simple question."""
        try:
            await self._client.internals.attempt(calls.session(), beyond=True)
        except (DatabaseUnavailable, ConnectionLost, psycopg.OperationalError) as exc:
            self._question = _reason(exc)
        except (PenstockError, psycopg.Error) as exc:
            # An error is an answer, too.
            logger.debug("the database answers: %s", exc)
            self.answered()
        else:
            self.answered()


def _reason(exc: Exception) -> str:
    return f"the database cannot be reached: {exc}"
