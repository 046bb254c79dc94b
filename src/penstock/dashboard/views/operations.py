"""Operations: bulk actions on dead letters, their progress, and how to cancel them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dashboard.pages import Act, Done, Missing, View, action, page
from penstock.operations import Operation
from penstock.wording import shown

__all__ = ["OperationPage", "OperationsPage", "cancel_operation", "operation_page", "operations"]

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class OperationsPage:
    """Operations, the newest first."""

    operations: list[Operation]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class OperationPage:
    """One operation. seconds_left: at the rate so far; None if that is not known."""

    operation: Operation
    seconds_left: float | None


@page(
    "/operations",
    template="operations.html",
    title="Operations",
    query={"before": "The id of the last operation of the page before."},
)
async def operations(view: View) -> OperationsPage:
    """Bulk actions on dead letters, the newest first."""
    before = view.query.get("before", "")
    found = await view.client.list_operations(
        page_size=PAGE_SIZE, before_id=int(before) if before.isdecimal() and len(before) < 19 else None
    )
    return OperationsPage(found, found[-1].id if len(found) == PAGE_SIZE else None)


@page("/operations/{operation}", template="operation.html", title="Operation {operation}")
async def operation_page(view: View, operation: str) -> OperationPage:
    """The progress of a bulk action."""
    found = None
    if operation.isdecimal() and len(operation) < 19:
        found = await view.client.get_operation(int(operation))
    if found is None:
        raise Missing(f"There is no operation {shown(operation)}.")
    left = max(0, found.total_count - found.done_count)
    speed = found.done_per_second
    return OperationPage(found, left / speed if speed and found.finished_at is None else None)


@action("/operations/{operation}/cancel", name="cancel_operation")
async def cancel_operation(act: Act, operation: str) -> Done:
    """Cancel an operation. What it has done stays done."""
    if not operation.isdecimal() or len(operation) > 18:
        raise Missing(f"There is no operation {shown(operation)}.")
    if not await act.tx.cancel_operation(int(operation)):
        return Done(f"Operation {operation} has ended already.", status="problem")
    return Done(f"Operation {operation} is cancelled. What it has done stays done.")
