"""Groups: tasks that are enqueued together, and one that follows when all of them are done."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.declaring import GroupStart
from penstock.errors import InvalidArgument

from .handle import GroupHandle, Handle
from .task import TaskCall

__all__ = ["group_handle", "group_start"]

# The parameter of a callback that gets what the members returned.
RESULTS = "results"


def group_start(calls: Sequence[TaskCall], callback: TaskCall) -> GroupStart:
    """The messages of a group."""
    if not calls:
        raise InvalidArgument("a group has at least one task")
    for call in (*calls, callback):
        if not isinstance(call, TaskCall):
            raise InvalidArgument(f"a group is made of task.call(...), not of {call!r}")
    takes_results = RESULTS in callback.task.arguments.names and RESULTS not in callback.arguments
    return GroupStart(
        members=[call.member() for call in calls],
        callback=callback.member(),
        with_results=takes_results,
    )


def group_handle(group_id: int, ids: Sequence[int], calls: Sequence[TaskCall]) -> GroupHandle:
    return GroupHandle(group_id, [Handle(call.task, found) for call, found in zip(calls, ids, strict=True)])
