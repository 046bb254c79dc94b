"""Topics, queues, dead letters, statistics and maintenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock import calls
from penstock.errors import InvalidArgument
from penstock.models import (
    Breakdown,
    DeadLetter,
    DeadLetterPage,
    HistoryPoint,
    ListedMessage,
    MaintenanceResult,
    MessageDetails,
    MessageResult,
    QueueGrant,
    QueueOverview,
    QueueSettings,
    QueueStatistics,
    Right,
    State,
    Topic,
)
from penstock.schema import SchemaVersion
from penstock.sql_call import Call
from penstock.values import Duration

from .call_runner import AsyncCallRunner

__all__ = ["AsyncAdministration"]

# Dead letters of one transaction.
PAGE_SIZE = 10_000


class AsyncAdministration(AsyncCallRunner):
    """Calls that are not about a message in a handler."""

    # Topics

    async def create_topic(self, topic_name: str) -> int:
        """Create a topic; returns its id. An existing topic keeps its id."""
        return await self._run(calls.create_topic(topic_name))

    async def delete_topic(self, topic_name: str) -> None:
        """Delete a topic with its queues and all their messages."""
        await self._run(calls.delete_topic(topic_name))

    async def list_topics(self) -> list[Topic]:
        """All topics, by name."""
        return await self._run(calls.list_topics())

    # Queues

    async def create_queue(
        self,
        queue_name: str,
        *,
        topic: str | None = None,
        exclusive: bool = False,
        keep_alive: Duration | None = None,
        max_delivery_attempts: int | None = None,
        visibility_timeout: Duration | None = None,
        visibility_backoff: float | None = None,
        retry_delays: Sequence[Duration] | None = None,
        message_ttl: Duration | None = None,
        retain_completed: Duration | None = None,
        retain_dead: Duration | None = None,
        max_payload_bytes: int | None = None,
        max_active: int | None = None,
        min_active: int | None = None,
        priority_shares: Sequence[int] | None = None,
        tenant_max_active: int | None = None,
        notify: bool | None = None,
    ) -> int:
        """Create a queue, subscribed to a topic if one is given; returns its id.

        A second call with the same settings returns the same id, with other settings it raises QueueDiffers.
        A setting that is not given has the default of the schema: see "Settings of a queue" in the SQL
        reference.
        """
        return await self._run(calls.create_queue(**_arguments(locals())))

    async def alter_queue(
        self,
        queue_name: str,
        *,
        max_delivery_attempts: int | None = None,
        visibility_timeout: Duration | None = None,
        visibility_backoff: float | None = None,
        retry_delays: Sequence[Duration] | None = None,
        message_ttl: Duration | None = None,
        retain_completed: Duration | None = None,
        retain_dead: Duration | None = None,
        max_payload_bytes: int | None = None,
        max_active: int | None = None,
        min_active: int | None = None,
        priority_shares: Sequence[int] | None = None,
        tenant_max_active: int | None = None,
        notify: bool | None = None,
    ) -> None:
        """Change settings of a queue; settings that are not given stay. 0 removes a limit."""
        await self._run(calls.alter_queue(**_arguments(locals())))

    async def pause_queue(self, queue_name: str) -> None:
        """Pause a queue: it accepts messages, but delivers none."""
        await self._run(calls.pause_queue(queue_name))

    async def resume_queue(self, queue_name: str) -> None:
        """Let a paused queue deliver again."""
        await self._run(calls.resume_queue(queue_name))

    async def extend_queue_keep_alive(self, queue_name: str, keep_alive: Duration) -> datetime:
        """Keep an exclusive queue for so many seconds from now; returns the end of that time."""
        return await self._run(calls.extend_queue_keep_alive(queue_name, keep_alive))

    async def delete_queue(self, queue_name: str) -> None:
        """Delete a queue and all its messages."""
        await self._run(calls.delete_queue(queue_name))

    async def list_queues(self) -> list[QueueSettings]:
        """All queues that this role has a right in, by name, with every setting."""
        return await self._run(calls.list_queues())

    # Rights

    async def grant_queue(self, role_name: str, queue_name: str, right: Right) -> bool:
        """Give a role a right in a queue: "publish", "consume" or "view"; False if the role has it already.

        The first grant restricts a queue: only administrators and roles with a right may use it, until
        open_queue().
        """
        return await self._run(calls.grant_queue(role_name, queue_name, right))

    async def revoke_queue(self, role_name: str, queue_name: str, right: Right) -> bool:
        """Take a right in a queue away from a role; False if the role does not have it.

        The queue stays restricted, also without any grant.
        """
        return await self._run(calls.revoke_queue(role_name, queue_name, right))

    async def open_queue(self, queue_name: str) -> bool:
        """Delete all grants of a queue: it is open again. False if it was open."""
        return await self._run(calls.open_queue(queue_name))

    async def list_grants(self, queue_name: str | None = None) -> list[QueueGrant]:
        """The grants of a queue, or of all queues: which role has which right."""
        return await self._run(calls.list_grants(queue_name))

    # Dead letters

    async def list_dlq_messages(
        self,
        queue_name: str | None = None,
        *,
        page_size: int | None = None,
        after: str | None = None,
        newest_first: bool = False,
        error_key: str | None = None,
    ) -> list[DeadLetter]:
        """Dead letters of a queue, or of all. For the next page give the cursor of the last one as after.

        newest_first: the newest dead letters first, else by queue and id. error_key: only the letters of that
        group (list_dlq_groups), the newest first.
        """
        return await self._run(calls.list_dlq_messages(queue_name, page_size, after, newest_first, error_key))

    async def requeue_dlq_messages(
        self, queue_name: str, message_ids: Sequence[int] | None = None, *, error_key: str | None = None
    ) -> int:
        """Requeue dead letters, all or the given ones, with their attempts at 0. Returns how many.

        error_key: only those of that group (list_dlq_groups). All of them: in pages, each in its own
        transaction. The given ones, and those of a group: in one transaction.
        """
        if message_ids is None and error_key is None:
            return await self._by_pages(lambda after: calls.requeue_dlq_page(queue_name, PAGE_SIZE, after))
        return await self._run(calls.requeue_dlq_messages(queue_name, message_ids, error_key))

    async def requeue_dlq_page(
        self,
        queue_name: str,
        *,
        page_size: int = PAGE_SIZE,
        after_id: int = 0,
        attempts: int | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> DeadLetterPage:
        """Requeue up to page_size dead letters with ids above after_id.

        The result has the after_id of the next page. attempts: as add_retries() does, with so many more
        attempts. headers: only messages that have these headers.
        """
        return await self._run(calls.requeue_dlq_page(queue_name, page_size, after_id, attempts, headers))

    async def _by_pages(self, page_after: Callable[[int], Call[DeadLetterPage]]) -> int:
        """Run one page after the other. Returns how many dead letters they had."""
        affected, after_id = 0, 0
        while True:
            page = await self._run(page_after(after_id))
            affected += page.affected
            if page.last_id is None:
                return affected
            after_id = page.last_id

    async def add_retries(
        self, queue_name: str, attempts: int, *, headers: Mapping[str, Any] | None = None
    ) -> int:
        """Requeue messages that had no attempts left or expired, with more attempts. Returns how many.

        In pages, each in its own transaction. headers: only messages that have these headers.
        """
        if attempts is None:
            raise InvalidArgument("attempts must be given, not None")
        return await self._by_pages(
            lambda after: calls.requeue_dlq_page(queue_name, PAGE_SIZE, after, attempts, headers)
        )

    async def purge_dlq(self, queue_name: str | None = None, *, error_key: str | None = None) -> int:
        """Delete the dead letters of a queue, or of all queues. Returns how many.

        error_key: only those of that group (list_dlq_groups). Of a queue: in pages, each in its own
        transaction. Of a group, or of all queues: in one transaction.
        """
        if queue_name is None or error_key is not None:
            return await self._run(calls.purge_dlq(queue_name, error_key))
        return await self._by_pages(lambda after: calls.purge_dlq_page(queue_name, PAGE_SIZE, after))

    async def purge_dlq_page(
        self, queue_name: str, *, page_size: int = PAGE_SIZE, after_id: int = 0
    ) -> DeadLetterPage:
        """Delete up to page_size dead letters with ids above after_id.

        The result has the after_id of the next page.
        """
        return await self._run(calls.purge_dlq_page(queue_name, page_size, after_id))

    # Statistics and inspection

    async def get_queue_statistics(
        self,
        queue_name: str | None = None,
        *,
        breakdown: Breakdown | None = None,
        top: int | None = None,
        completed_since: datetime | None = None,
    ) -> list[QueueStatistics]:
        """Count the messages of a queue, or of each queue, by state; with a breakdown by priority or tenant.

        completed_since: count only messages that were completed after this time, not the whole history.
        """
        return await self._run(calls.get_queue_statistics(queue_name, breakdown, top, completed_since))

    async def queue_history(
        self,
        queue_name: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step: Duration | None = None,
    ) -> list[HistoryPoint]:
        """What a queue did, a point for each step, oldest first; by default in the last hour.

        step: rounded up to a multiple of 10 seconds; of 5 minutes if since is over 3 hours ago, of an hour if
        it is over 3 days ago. By default the shortest with at most 400 points.
        """
        return await self._run(calls.queue_history(queue_name, since, until, step))

    async def overview_history(
        self, *, points: int | None = None, step: Duration | None = None
    ) -> list[QueueOverview]:
        """The newest sample of each queue, with short series: by default 12 steps of 5 minutes.

        It reads samples and counts nothing, so it is cheap with any number of messages.
        """
        return await self._run(calls.overview_history(points, step))

    async def list_messages(
        self,
        queue_name: str,
        *,
        state: State | None = None,
        page_size: int | None = None,
        after: str | None = None,
    ) -> list[ListedMessage]:
        """Messages of a queue, 100 at a time. For the next page give the cursor of the last one as after."""
        return await self._run(calls.list_messages(queue_name, state, page_size, after))

    async def get_message(
        self, queue_name: str, message_id: int, *, most_payload_bytes: int | None = None
    ) -> MessageDetails | None:
        """All facts about a message; None if it is unknown or not kept any more.

        most_payload_bytes: a larger JSON payload is left out, and of larger bytes the first ones come;
        the field payload_bytes has the size. None: the payload is complete.
        """
        return await self._run(
            calls.get_message(queue_name, message_id, most_payload_bytes=most_payload_bytes)
        )

    async def get_result(self, queue_name: str, message_id: int) -> MessageResult | None:
        """The outcome of a message: its state, its result or errors; None if it is unknown or not kept.

        For the role that publishes and waits: it returns neither payload nor headers.
        """
        return await self._run(calls.get_result(queue_name, message_id))

    async def explain_delivery(self, queue_name: str, message_id: int) -> str:
        """Explain in words why a message is not running."""
        return await self._run(calls.explain_delivery(queue_name, message_id))

    # Cleanup

    async def cancel_message(self, queue_name: str, message_id: int) -> bool:
        """Take a message out of a queue before it is delivered; False if it is not pending there."""
        return await self._run(calls.cancel_message(queue_name, message_id))

    async def purge_queue(self, queue_name: str) -> int:
        """Delete all unfinished messages of a queue. Returns how many."""
        return await self._run(calls.purge_queue(queue_name))

    async def purge_all_messages(self, after_queue_id: int = 0) -> None:
        """Delete all messages of all queues, in any state; or of those after a queue.

        500 queues in a transaction. In a transaction of the caller all of them: each takes a lock.
        """
        after: int | None = after_queue_id
        while after is not None:
            after = await self._run(calls.purge_all_messages(after))

    async def cleanup_queue_messages(self, queue_name: str) -> int:
        """Delete all completed messages of a queue. Returns how many."""
        return await self._run(calls.cleanup_queue_messages(queue_name))

    async def cleanup_topic_messages(self, topic_name: str) -> int:
        """Delete all completed messages of all queues of a topic. Returns how many."""
        return await self._run(calls.cleanup_topic_messages(topic_name))

    async def cleanup_expired_exclusive_queues(self) -> int:
        """Delete up to 500 exclusive queues whose keep-alive has ended. Returns how many."""
        return await self._run(calls.cleanup_expired_exclusive_queues())

    # Maintenance and others

    async def maintain(self, queue_names: Sequence[str] | None = None) -> list[MaintenanceResult]:
        """Do the maintenance that is due; a consuming client calls this by itself.

        queue_names: the queues to examine at once, among more than 500. The others take turns.
        """
        return await self._run(calls.maintain(queue_names))

    async def sample(self) -> float:
        """Write the history of all queues, if no session has done so in these ten seconds.

        Workers and `penstock up` call this by themselves. Returns the seconds to wait before the next call.
        """
        return await self._run(calls.sample())

    async def raise_floor(self, queue_name: str) -> bool:
        """Raise the floor of a queue now; maintain() calls this by itself."""
        return await self._run(calls.raise_floor(queue_name))

    async def clock(self) -> datetime:
        """The time of the clock that decides all times of the queues."""
        return await self._run(calls.clock())

    async def channel(self, queue_name: str) -> str:
        """The NOTIFY channel of a queue."""
        return await self._run(calls.channel(queue_name))

    async def schema_version(self) -> SchemaVersion:
        """The installed version of the schema."""
        return await self._run(calls.schema_version())


def _arguments(names: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a method whose call takes the same ones: a setting is listed in the signature only."""
    return {name: value for name, value in names.items() if name != "self"}
