"""Calls for people who operate queues: groups of dead letters, bulk operations, shares, search, the audit."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import calls
from penstock.models import State
from penstock.operations import (
    AuditEntry,
    DeadLetterGroup,
    DeliveryExplanation,
    Operation,
    OperationAction,
    PermitCount,
    SearchResult,
    StoredMessage,
    TenantShare,
)
from penstock.payloads import Json
from penstock.values import Duration

from .call_runner import AsyncCallRunner

__all__ = ["AsyncOperating"]


class AsyncOperating(AsyncCallRunner):
    """What the pages of a dashboard show and do. All reads are cheap, with queues of any size."""

    # Single messages

    async def deliver_message_now(self, queue_name: str, message_id: int) -> bool:
        """Make a message ready that is delayed, waits for its next attempt, or is parked; False if it is not.

        A delayed one goes behind all others, a retry between them, a parked one to the front.
        """
        return await self._run(calls.deliver_message_now(queue_name, message_id))

    async def deliver_messages_now(self, queue_name: str, message_ids: Sequence[int]) -> list[int]:
        """deliver_message_now() for many messages. Returns the ids of those that were scheduled."""
        return await self._run(calls.deliver_messages_now(queue_name, message_ids))

    async def get_stored_message(
        self, queue_name: str, message_id: int, *, most_bytes: int
    ) -> StoredMessage | None:
        """A message as it is stored, with JSON as text; without values of more than most_bytes."""
        return await self._run(calls.get_stored_message(queue_name, message_id, most_bytes))

    async def explain_delivery_data(self, queue_name: str, message_id: int) -> DeliveryExplanation:
        """Explain why a message is not running: the facts, and the sentence of explain_delivery()."""
        return await self._run(calls.explain_delivery_data(queue_name, message_id))

    async def search_messages(
        self,
        *,
        message_id: int | None = None,
        queue_name: str | None = None,
        state: State | None = None,
        tenant: str | None = None,
        dedup_key: str | None = None,
        task_name: str | None = None,
        payload_path: Sequence[str] | None = None,
        payload_value: str | None = None,
        page_size: int | None = None,
        deadline: Duration | None = None,
    ) -> SearchResult:
        """Search messages of a queue, or of all, that fit all of what is given.

        Ids and dedup keys are looked up. Anything else examines messages one by one until 50 (page_size) were
        found, or half a second (deadline) is over. The result says how far it looked. payload_value: the text
        at payload_path; numbers and booleans as JSON writes them.
        """
        return await self._run(
            calls.search_messages(
                message_id=message_id,
                queue_name=queue_name,
                state=state,
                tenant=tenant,
                dedup_key=dedup_key,
                task_name=task_name,
                payload_path=payload_path,
                payload_value=payload_value,
                page_size=page_size,
                deadline=deadline,
            )
        )

    # Dead letters

    async def list_dlq_groups(
        self, queue_name: str | None = None, *, page_size: int | None = None, after: str | None = None
    ) -> list[DeadLetterGroup]:
        """The kinds of errors of dead letters, by queue and error_key, 100 at a time."""
        return await self._run(calls.list_dlq_groups(queue_name, page_size, after))

    async def delete_dlq_messages(self, queue_name: str, message_ids: Sequence[int]) -> int:
        """Delete the dead letters with these ids. Returns how many."""
        return await self._run(calls.delete_dlq_messages(queue_name, message_ids))

    # Operations

    async def start_operation(
        self,
        action: OperationAction,
        queue_name: str,
        *,
        error_key: str | None = None,
        per_second: int | None = None,
        with_canary: bool = False,
        who: str | None = None,
    ) -> int:
        """Plan a bulk action on dead letters: "redrive" or "delete". Returns the id of the operation.

        error_key: only the letters of that group. per_second: the greatest rate. with_canary: redrive one
        letter first, and the others when that one is done. advance_operation() does the work.
        """
        return await self._run(
            calls.start_operation(
                action,
                queue_name,
                error_key=error_key,
                per_second=per_second,
                with_canary=with_canary,
                who=who,
            )
        )

    async def advance_operation(
        self, operation_id: int, *, batch_size: int | None = None
    ) -> Operation | None:
        """Do the next batch of an operation, of 1,000 letters. None if another session is at it.

        Call it again until finished_at is set. With a rate or a canary there may be nothing to do yet.
        """
        return await self._run(calls.advance_operation(operation_id, batch_size))

    async def cancel_operation(self, operation_id: int) -> bool:
        """Cancel an operation after the batch that is under way; False if it has ended."""
        return await self._run(calls.cancel_operation(operation_id))

    async def get_operation(self, operation_id: int) -> Operation | None:
        """An operation and its progress; None if it is unknown."""
        return await self._run(calls.get_operation(operation_id))

    async def list_operations(
        self, *, unfinished: bool = False, page_size: int | None = None, before_id: int | None = None
    ) -> list[Operation]:
        """Operations, the newest first, 100 at a time. For the next page give the id of the last one."""
        return await self._run(calls.list_operations(unfinished, page_size, before_id))

    # Shares

    async def list_tenants(
        self, queue_name: str, *, page_size: int | None = None, after: str | None = None
    ) -> list[TenantShare]:
        """Tenants of a queue, those with the most messages first, and how they were served, 100 at a time."""
        return await self._run(calls.list_tenants(queue_name, page_size, after))

    async def list_permits(self, queue_name: str) -> list[PermitCount]:
        """The permits of a queue with max_active, by priority: held by which consumers, free, and debts."""
        return await self._run(calls.list_permits(queue_name))

    # The audit

    async def record_action(
        self,
        action: str,
        *,
        queue_name: str | None = None,
        details: Json = None,
        outcome: str | None = None,
        who: str | None = None,
    ) -> int:
        """Append an action to the audit, in the transaction of the action. Returns the id of the entry.

        outcome: "done" by default. who: the person for whom the program acts.
        """
        return await self._run(calls.record_action(action, queue_name, details, outcome, who))

    async def list_actions(
        self, queue_name: str | None = None, *, page_size: int | None = None, before_id: int | None = None
    ) -> list[AuditEntry]:
        """The audit of a queue, or of all, the newest first, 100 at a time."""
        return await self._run(calls.list_actions(queue_name, page_size, before_id))
