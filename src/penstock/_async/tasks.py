"""Calls for workers: queues for tasks, groups, schedules, and the list of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock import calls
from penstock.models import GroupProgress, ListedSchedule, ListedWorker, Missed
from penstock.values import Duration

from .call_runner import AsyncCallRunner

__all__ = ["AsyncTasks"]


class AsyncTasks(AsyncCallRunner):
    """The calls that tasks and workers use."""

    async def declare_queue(
        self,
        queue_name: str,
        *,
        max_active: int | None = None,
        retain_completed: Duration | None = None,
    ) -> int:
        """Create a queue for tasks if it is missing, without a limit of attempts; returns its id.

        For an existing queue, an administrator sets max_active if given, and raises retain_completed if
        given. For any other role the queue does not change: see queue_difference().
        """
        return await self._run(calls.declare_queue(queue_name, max_active, retain_completed))

    async def queue_difference(
        self,
        queue_name: str,
        *,
        max_active: int | None = None,
        retain_completed: Duration | None = None,
    ) -> str | None:
        """What declare_queue() would change, in words; None if nothing differs."""
        return await self._run(calls.queue_difference(queue_name, max_active, retain_completed))

    async def ack_tasks(
        self,
        queue_name: str,
        message_ids: Sequence[int],
        token: str,
        *,
        results: Sequence[object] | None = None,
        group_ids: Sequence[int | None] | None = None,
        positions: Sequence[int | None] | None = None,
    ) -> list[int]:
        """Complete messages that a token holds; returns the ids of the messages that it did hold.

        results: one for each, or None; kept with the message. group_ids, positions: the group of each
        message, None for none, and its position in the group, from 0 on: call finish_groups() after the
        commit. Callers that wait for a result are notified.
        """
        return await self._run(
            calls.ack_tasks(
                queue_name, message_ids, token, results=results, group_ids=group_ids, positions=positions
            )
        )

    async def park_messages(
        self, queue_name: str, message_ids: Sequence[int], token: str, task_names: Sequence[str]
    ) -> list[int]:
        """Return messages that a token holds and its worker cannot run, each under the name of its task.

        The attempt does not count. They leave the line until a worker asks for the task: consume_tasks().
        Returns the ids of the messages that the token did hold.
        """
        return await self._run(calls.park_messages(queue_name, message_ids, token, task_names))

    async def done_channel(self, queue_name: str) -> str:
        """The NOTIFY channel for finished tasks of a queue."""
        return await self._run(calls.done_channel(queue_name))

    async def announce_done(self, queue_name: str, message_ids: Sequence[int]) -> None:
        """Notify callers that wait for results: these messages are dead letters, and have none."""
        await self._run(calls.announce_done(queue_name, message_ids))

    # Groups

    async def create_group(
        self,
        total: int,
        callback_queue: str,
        callback_payload: object,
        *,
        headers: Mapping[str, Any] | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        ttl: Duration | None = None,
        with_results: bool = False,
        keep: Duration | None = None,
    ) -> int:
        """Create a group of so many messages; returns its id. When all are done, the callback is sent.

        A member is done when ack_tasks() acks it with this id. with_results: the payload of the callback gets
        a field "results", in the order of the positions. Send the members in the same transaction. A group
        that is not complete after `keep` (30 days) is deleted: a member may be dead for good.
        """
        return await self._run(
            calls.create_group(
                total,
                callback_queue,
                callback_payload,
                headers=headers,
                priority=priority,
                tenant=tenant,
                ttl=ttl,
                with_results=with_results,
                keep=keep,
            )
        )

    async def finish_groups(self, group_ids: Sequence[int] | None = None) -> list[int]:
        """Send the callbacks of complete groups, of these or of all; returns the ids of the groups."""
        return await self._run(calls.finish_groups(group_ids))

    async def list_groups(self) -> list[GroupProgress]:
        """Groups whose callback has not been sent."""
        return await self._run(calls.list_groups())

    async def delete_group(self, group_id: int) -> bool:
        """Delete a group: its callback is not sent. False if there is none."""
        return await self._run(calls.delete_group(group_id))

    # Schedules

    async def put_schedule(
        self,
        name: str,
        queue_name: str,
        payload: object,
        *,
        definition: object,
        next_at: datetime,
        missed: Missed = "skip",
        headers: Mapping[str, Any] | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        ttl: Duration | None = None,
    ) -> datetime:
        """Make or change a schedule; returns when it is due next.

        That is next_at. But an existing schedule with the same definition keeps its next time.
        """
        return await self._run(
            calls.put_schedule(
                name,
                queue_name,
                payload,
                definition=definition,
                missed=missed,
                next_at=next_at,
                headers=headers,
                priority=priority,
                tenant=tenant,
                ttl=ttl,
            )
        )

    async def advance_schedule(
        self, name: str, expected: datetime, next_at: datetime, ticks: Sequence[datetime]
    ) -> list[int]:
        """Move a schedule that is due, and send a message for each tick; returns their ids.

        None if the schedule is not due at the expected time any more: another worker was first.
        """
        return await self._run(calls.advance_schedule(name, expected, next_at, ticks))

    async def pause_schedule(self, name: str) -> None:
        """Pause a schedule: its times pass, and nothing is sent."""
        await self._run(calls.pause_schedule(name))

    async def resume_schedule(self, name: str, next_at: datetime | None = None) -> None:
        """Resume a paused schedule at its first time from now on: missed times are not made up for.

        next_at: when it is due next, instead of that time.
        """
        await self._run(calls.resume_schedule(name, next_at))

    async def run_schedule(self, name: str) -> int:
        """Send the message of a schedule now; returns its id. The next due time does not change."""
        return await self._run(calls.run_schedule(name))

    async def delete_schedule(self, name: str) -> bool:
        """Delete a schedule; False if there is none."""
        return await self._run(calls.delete_schedule(name))

    async def list_schedules(self) -> list[ListedSchedule]:
        """All schedules, by name."""
        return await self._run(calls.list_schedules())

    # Workers

    async def register_worker(
        self,
        token: str,
        *,
        hostname: str,
        pid: int,
        version: str,
        queues: Sequence[str],
        tasks: Sequence[str],
        concurrency: int,
    ) -> None:
        """Add a worker to the list, under the token of its leases."""
        await self._run(
            calls.register_worker(
                token,
                hostname=hostname,
                pid=pid,
                version=version,
                queues=queues,
                tasks=tasks,
                concurrency=concurrency,
            )
        )

    async def beat_worker(self, token: str, *, held: int, running: object, stopping: bool) -> bool:
        """Report that a worker is alive: how many messages it holds, what it runs, whether it is stopping.

        False if it is not in the list any more.
        """
        return await self._run(calls.beat_worker(token, held, running, stopping))

    async def forget_worker(self, token: str) -> bool:
        """Remove a worker from the list; False if it is not there."""
        return await self._run(calls.forget_worker(token))

    async def list_workers(self) -> list[ListedWorker]:
        """Workers, the oldest first, with the last report of each."""
        return await self._run(calls.list_workers())
