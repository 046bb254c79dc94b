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

# Where nobody else has asked for so long, the database is asked whether it is there.
QUIET_SECONDS = 3.0
# So long it may take to answer.
ANSWER_SECONDS = 10.0
STEP_SECONDS = 1.0


class Contact:
    """Hears from those who talk to the database how that went; asks by itself where nobody does."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._answered_at = now()
        # Why nothing can be claimed, and why the question whether it is there was not answered.
        self._claims = self._question = ""
        # Queues of which nothing can be claimed, and why.
        self._refused: dict[str, str] = {}

    # What the fetcher says

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
        """Why there is no contact; empty where there is."""
        silence = now() - self._answered_at
        if silence > QUIET_SECONDS + ANSWER_SECONDS and not (self._claims or self._question):
            return f"the database has not answered for {silence:.0f} s"
        return self._claims or self._question or "; ".join(self._refused.values())

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await async_sleep(STEP_SECONDS)
            if now() - self._answered_at > QUIET_SECONDS:
                await self.run_once()

    async def run_once(self) -> None:
        """Ask."""
        try:
            await self._client._attempt(calls.session(), beyond=True)
        except (DatabaseUnavailable, ConnectionLost, psycopg.OperationalError) as exc:
            self._question = _reason(exc)
        except (PenstockError, psycopg.Error) as exc:
            # It has answered, whatever it says.
            logger.debug("the database answers: %s", exc)
            self.answered()
        else:
            self.answered()


def _reason(exc: Exception) -> str:
    return f"the database cannot be reached: {exc}"
