"""The settler: writes the outcomes of runs to the database, in groups, until they are acknowledged."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.backoff import Backoff
from penstock.concurrency import AsyncFlag, async_sleep, now
from penstock.errors import (
    ConnectionLost,
    DatabaseUnavailable,
    InvalidArgument,
    NotReplicated,
    PermissionDenied,
    QueueNotFound,
    SchemaError,
)
from penstock.sql_call import Call

from .outcome import Outcome
from .run import Run, Unrunnable
from .settlement import Pending, Settlement

__all__ = ["Settler"]

logger = logging.getLogger("penstock.worker")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0

T = TypeVar("T")


class Settler:
    """Settles one group at a time. Runs that end meanwhile make up the next group.

    settled: called with runs whose end the database has acknowledged. in_doubt: called when it is not known
    whether messages were settled: they may come back to this worker, with another token. delayed: called
    with the queue and the seconds when a message is put off.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        settled: Callable[[list[Run]], None],
        in_doubt: Callable[[], None] = lambda: None,
        delayed: Callable[[str, float], None] = lambda _queue_name, _delay: None,
    ) -> None:
        self._client = client
        self._settled = settled
        self._in_doubt = in_doubt
        self._delayed = delayed
        self._pending = Pending()
        self._wake_up = AsyncFlag()
        self._idle = AsyncFlag()
        self._idle.set()

    def settle(self, run: Run | Unrunnable, outcome: Outcome) -> None:
        """A run has ended: its outcome goes to the database with the next group."""
        if outcome.delay:
            self._delayed(run.claimed.queue_name, outcome.delay)
        self._pending.add(run, outcome)
        self._wake_up.set()

    # The loop

    async def run(self) -> None:
        """Settle what ends, until this is cancelled."""
        while True:
            if not self._pending:
                self._idle.set()
                await self._wake_up.wait(None)
            self._wake_up.clear()
            self._idle.clear()
            await self.run_once()

    async def drained(self, timeout: float) -> bool:
        """Wait until all outcomes are acknowledged; whether they are."""
        deadline = now() + timeout
        while self._pending or not self._idle.is_set():
            if now() > deadline:
                return False
            # A pending outcome wakes the loop, and the loop clears `_idle` before it begins.
            await async_sleep(0)
            await self._idle.wait(deadline - now())
        return True

    async def run_once(self) -> None:
        """Settle all that is pending now."""
        pending, self._pending = self._pending, Pending()
        for group in pending.groups():
            await self._settle_group(group)

    # Groups

    async def _settle_group(self, group: Sequence[Settlement]) -> None:
        """In one transaction, for the sake of one commit; statement by statement where that fails."""
        if len(group) == 1 or not await self._settle_together(group):
            for settlement in group:
                await self._settle_alone(settlement)
        await self._finish_groups(group)
        await self._announce(group)

    async def _settle_together(self, group: Sequence[Settlement]) -> bool:
        try:
            answers = await self._client.internals.run_together([each.call() for each in group])
        except (ConnectionLost, NotReplicated) as exc:
            # The transaction may have committed before the connection broke. Then some messages may have been
            # redelivered to this worker: from now on with another token, so that they are not settled here.
            self._in_doubt()
            logger.debug("settled statement by statement: %s", exc)
            return False
        except Exception as exc:
            logger.debug("settled statement by statement: %s", exc)
            return False
        for settlement, held in zip(group, answers, strict=True):
            self._acknowledge(settlement, held)
        return True

    async def _settle_alone(self, settlement: Settlement) -> None:
        """In a statement of its own; in smaller parts where the statement is refused."""
        try:
            held = await self._patiently(settlement.call)
        except Exception as exc:
            if len(settlement.ended) > 1 and _may_concern_one_message(settlement, exc):
                for half in settlement.halves():
                    await self._settle_alone(half)
            elif settlement.key.verdict == "ack_with_result" and isinstance(exc, InvalidArgument):
                await self._reject_result(settlement, exc)
            else:
                # Other outcomes must be settled nevertheless. These messages come back when their leases end.
                self._in_doubt()
                logger.exception("%s failed for %s", settlement.key.verdict, settlement)
                self._acknowledge(settlement, ())
            return
        self._acknowledge(settlement, held)

    async def _reject_result(self, settlement: Settlement, exc: InvalidArgument) -> None:
        """The handler is done, and the database refuses to store what it returned."""
        error = f"it was done, but its result cannot be stored: {exc}"
        ((run, _),) = settlement.ended
        logger.error("rejected (%s): %s", error, run)
        rejected = Settlement(settlement.key._replace(verdict="reject"), [(run, Outcome.rejected(error))])
        await self._settle_alone(rejected)
        await self._announce([rejected])

    async def _patiently(self, make_call: Callable[[], Call[T]]) -> T | tuple[()]:
        """Run a call until the database has answered; nothing where the queue does not exist any more."""
        call, backoff = make_call(), Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                return await self._client.internals.run(call)
            except (ConnectionLost, NotReplicated) as exc:
                # After a failover the call may be undone. A second one does no harm.
                self._in_doubt()
                logger.debug("%s: %s", call.function, exc)
            except DatabaseUnavailable as exc:
                logger.debug("%s: %s", call.function, exc)
            except QueueNotFound:
                return ()
            await async_sleep(backoff.next())

    def _acknowledge(self, settlement: Settlement, held: Iterable[int]) -> None:
        """The database has answered. held: the messages that the token still held."""
        held, runs = set(held), settlement.runs
        for run in runs:
            if run.message_id not in held and run.interruption is None:
                logger.warning("the lease was lost before its end could be recorded: %s", run)
        self._settled(runs)

    # After the commit

    async def _finish_groups(self, group: Sequence[Settlement]) -> None:
        """Finish groups of tasks that the acks may have completed.

        After the commit: when two members end at once, the later call sees both. maintain() finishes groups
        that are missed here because this process ends.
        """
        ids = {
            run.group[0]
            for settlement in group
            if settlement.key.verdict == "ack_with_result"
            for run in settlement.runs
            if run.group is not None
        }
        if ids:
            await self._inform(calls.finish_groups(sorted(ids)))

    async def _announce(self, group: Sequence[Settlement]) -> None:
        """Wake callers that wait for the result of a task: there may never be one."""
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for settlement in group:
            if settlement.key.verdict in ("retry", "reject"):
                ids = [run.message_id for run in settlement.runs if run.task.result_seconds is not None]
                by_queue[settlement.key.queue_name] += ids
        for queue_name, ids in by_queue.items():
            if ids:
                await self._inform(calls.announce_done(queue_name, ids))

    async def _inform(self, call: Call[Any]) -> None:
        try:
            await self._patiently(lambda: call)
        except Exception:
            logger.exception("%s failed", call.function)


def _may_concern_one_message(settlement: Settlement, exc: Exception) -> bool:
    """Whether a part of the settlement may succeed: one refused result must not cost the others their ack."""
    return settlement.key.verdict != "ack" and not isinstance(exc, PermissionDenied | SchemaError)
