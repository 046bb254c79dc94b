"""Groups: messages that have a callback when all of them are done."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dashboard.pages import Act, Done, Missing, View, action, page
from penstock.models import GroupProgress

__all__ = ["GroupsPage", "delete_group", "groups"]


@dataclass(frozen=True, slots=True)
class GroupsPage:
    """Groups whose callback has not been sent. dead_counts: dead letters among the members, by group."""

    groups: list[GroupProgress]
    dead_counts: dict[int, int]


@page("/groups", template="groups.html", title="Groups")
async def groups(view: View) -> GroupsPage:
    """Groups whose callback has not been sent yet, with their progress."""
    found = await view.client.list_groups()
    diagnosed = await view.client.diagnose_groups()
    return GroupsPage(found, {each.group_id: each.dead_count for each in diagnosed if each.dead_count})


@action("/groups/{group}/delete", name="delete_group", needs="administer")
async def delete_group(act: Act, group: str) -> Done:
    """Delete a group: its callback is not sent."""
    if not group.isdecimal() or not await act.tx.delete_group(int(group)):
        raise Missing(f"There is no group {group}.")
    return Done(f"Group {group} was deleted. Its callback is not sent.")
