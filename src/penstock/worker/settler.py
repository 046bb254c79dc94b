"""The settler: tells the database what became of runs, in groups, until it knows."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.backoff import Backoff
from penstock.concurrency import AsyncFlag, async_sleep, now
from penstock.errors import ConnectionLost, DatabaseUnavailable, InvalidArgument, QueueNotFound
from penstock.models import Receipt
from penstock.payloads import Json
from penstock.sql_call import Call

from .run import Run, ack_special

__all__ = ["Settler"]

logger = logging.getLogger("penstock.worker")

# Messages in one statement, or one transaction.
MOST_ACKS = 1000
MOST_OTHERS = 50
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


@dataclass(slots=True)
class Pending:
    """What is to be told."""

    # Acks without anything beside them, by queue and token.
    plain: dict[tuple[str, str], list[Run]] = field(default_factory=lambda: defaultdict(list))
    # Acks with a result that is kept, or of a group: by queue and token, with the result.
    special: dict[tuple[str, str], list[tuple[Run, Json]]] = field(default_factory=lambda: defaultdict(list))
    others: list[tuple[Run, Call[bool]]] = field(default_factory=list)
    # Of messages that no run can be made of.
    unfit: list[Call[bool]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.plain or self.special or self.others or self.unfit)


class Settler:
    """One group at a time; what ends meanwhile is the next group."""

    def __init__(
        self,
        client: AsyncClient,
        settled: Callable[[list[Run]], None],
        in_doubt: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._settled = settled
        # Told where it is not known what the token of this worker holds: no pulse may keep that.
        self._in_doubt = in_doubt
        # Told when a message is put off: it is due then.
        self.on_delay: Callable[[str, float], None] = lambda _queue_name, _delay: None
        self._pending = Pending()
        self._flag = AsyncFlag()
        self._idle = AsyncFlag()
        self._idle.set()

    # What the executor says

    def done(self, run: Run) -> None:
        self._pending.plain[run.claimed.queue_name, run.claimed.token].append(run)
        self._flag.set()

    def done_with(self, run: Run, result: Json) -> None:
        self._pending.special[run.claimed.queue_name, run.claimed.token].append((run, result))
        self._flag.set()

    def failed(self, run: Run, delay: float, error: str) -> None:
        call = calls.nack_message(run.receipt, delay, error, run.max_attempts)
        self._add_other(run, call, delay)

    def rejected(self, run: Run, error: str) -> None:
        self._add_other(run, calls.reject_message(run.receipt, error))

    def released(self, run: Run, delay: float = 0) -> None:
        self._add_other(run, calls.release_message(run.receipt, delay), delay)

    def reject(self, row: calls.Claimed, error: str) -> None:
        """A message that no run can be made of."""
        receipt = Receipt(row.queue_name, row.message_id, row.token)
        self._pending.unfit.append(calls.reject_message(receipt, error))
        self._flag.set()

    def _add_other(self, run: Run, call: Call[bool], delay: float = 0) -> None:
        if delay:
            self.on_delay(run.queue_name, delay)
        self._pending.others.append((run, call))
        self._flag.set()

    # The loop

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            if not self._pending:
                self._idle.set()
                await self._flag.wait(None)
            self._flag.clear()
            self._idle.clear()
            await self.run_once()

    async def drained(self, timeout: float) -> bool:
        """Wait until all is told; whether it is."""
        deadline = now() + timeout
        while self._pending or not self._idle.is_set():
            if now() > deadline:
                return False
            # What is pending sets the flag, and the loop clears this before it begins.
            await async_sleep(0)
            await self._idle.wait(deadline - now())
        return True

    async def run_once(self) -> None:
        """Tell all that is there now."""
        pending, self._pending = self._pending, Pending()
        for (queue_name, token), runs in pending.plain.items():
            for start in range(0, len(runs), MOST_ACKS):
                await self._ack(queue_name, token, runs[start : start + MOST_ACKS])
        for pairs in pending.special.values():
            for start in range(0, len(pairs), MOST_ACKS):
                await self._ack_special(pairs[start : start + MOST_ACKS])
        for start in range(0, len(pending.others), MOST_OTHERS):
            await self._settle_others(pending.others[start : start + MOST_OTHERS])
        for start in range(0, len(pending.unfit), MOST_OTHERS):
            await self._together(pending.unfit[start : start + MOST_OTHERS])

    async def _ack(self, queue_name: str, token: str, runs: list[Run]) -> None:
        ids = [run.claimed.message_id for run in runs]
        held = await self._patiently(calls.ack_messages_of(queue_name, ids, token), runs)
        self._told(runs, held)

    async def _ack_special(self, pairs: list[tuple[Run, Json]]) -> None:
        runs = [run for run, _ in pairs]
        try:
            held = await self._patiently(ack_special(runs, [result for _, result in pairs]), runs)
        except InvalidArgument as exc:
            if len(pairs) > 1:
                # One result that is refused should not cost the others their ack.
                for pair in pairs:
                    await self._ack_special([pair])
                return
            error = f"it was done, but its result cannot be stored: {exc}"
            logger.error("rejected (%s): %s", error, runs[0])
            await self._settle_others([(runs[0], calls.reject_message(runs[0].receipt, error))])
            return
        self._told(runs, held)
        if finished := sorted({run.group[0] for run in runs if run.group is not None}):
            # After the commit: of two that end at once, the later one sees both. What is missed here,
            # because this process ends, maintain() makes up for.
            await self._patiently(calls.finish_groups(finished), [])

    async def _settle_others(self, others: list[tuple[Run, Call[bool]]]) -> None:
        runs = [run for run, _ in others]
        done = await self._together([call for _, call in others])
        self._told(runs, {run.message_id for run, held in zip(runs, done, strict=True) if held})
        await self._announce(run for run, call in others if call.function != "release_message")

    async def _together(self, many: list[Call[bool]]) -> list[bool]:
        """In one transaction, for the sake of one commit; each by itself where that fails."""
        try:
            async with self._client.transaction() as transaction:
                return [await transaction._run(call) for call in many]
        except ConnectionLost as exc:
            # It may have been done, and some of them may be back here by now: not as what they were.
            self._in_doubt()
            logger.debug("settled one by one: %s", exc)
        except Exception as exc:
            logger.debug("settled one by one: %s", exc)
        return [bool(await self._patiently(call, [])) for call in many]

    async def _announce(self, runs: Iterable[Run]) -> None:
        """Who waits for the result of a task may hear that there will be none."""
        by_queue = defaultdict(list)
        for run in runs:
            if run.task.result_seconds is not None:
                by_queue[run.queue_name].append(run.message_id)
        for queue_name, ids in by_queue.items():
            await self._patiently(calls.announce_done(queue_name, ids), [])

    async def _patiently(self, call: Call[Any], runs: list[Run]) -> Any:
        """Until the database has answered; nothing of it where the queue is gone."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                return await self._client._run(call)
            except ConnectionLost as exc:
                self._in_doubt()
                logger.debug("%s: %s", call.function, exc)
            except DatabaseUnavailable as exc:
                logger.debug("%s: %s", call.function, exc)
            except QueueNotFound:
                return ()
            except InvalidArgument:
                raise
            except Exception:
                # Whatever it is, others have to be told. These come back when their lease ends.
                self._in_doubt()
                logger.exception("%s failed for %s", call.function, ", ".join(map(str, runs)) or "some")
                return ()
            await async_sleep(backoff.next())

    def _told(self, runs: list[Run], held: Iterable[int]) -> None:
        held = held if isinstance(held, set) else set(held)
        for run in runs:
            if run.message_id not in held and run.interruption is None:
                logger.warning("the lease was lost before its end could be recorded: %s", run)
        self._settled(runs)
