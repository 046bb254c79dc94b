"""Groups: tasks that are enqueued together, and a callback that follows when all of them are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.declarations import GroupStart
from penstock.errors import InvalidArgument
from penstock.wording import shown

from .handle import GroupHandle, Handle
from .task import RESULTS, Task, TaskCall

__all__ = ["group_handle", "group_start"]


def group_start(calls: Sequence[TaskCall], callback: TaskCall | Task[..., Any]) -> GroupStart:
    """The messages of a group."""
    if isinstance(callback, Task):
        callback = callback.call()
    if not calls:
        raise InvalidArgument("a group has at least one task")
    for call in (*calls, callback):
        if not isinstance(call, TaskCall):
            raise InvalidArgument(f"a group is made of task.call(...), not of {shown(call)}")
    members = [call.member() for call in calls]
    for call, member in zip(calls, members, strict=True):
        if RESULTS in call.task.arguments.required and RESULTS not in call.arguments:
            raise InvalidArgument(f"task {call.task.name!r} needs {RESULTS!r}, which only a callback gets")
        if member.message.dedup_key is not None:
            raise InvalidArgument(
                f"task {call.task.name!r} cannot be in a group: it is unique, or has a dedup_key",
                hint="a refused duplicate would never be done, and so the callback would never be sent",
            )
    following = callback.member()
    for option in ("delay", "deliver_after", "dedup_key"):
        if getattr(following.message, option) is not None:
            raise InvalidArgument(f"the callback of a group cannot have {option}, nor be unique")
    takes_results = RESULTS in callback.task.arguments.names and RESULTS not in callback.arguments
    return GroupStart(members=members, callback=following, with_results=takes_results)


def group_handle(group_id: int, ids: Sequence[int], calls: Sequence[TaskCall]) -> GroupHandle:
    return GroupHandle(group_id, [Handle(call.task, found) for call, found in zip(calls, ids, strict=True)])
