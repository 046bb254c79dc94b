"""One queue on the screen: its settings, its tenants, the next messages, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest

from rich.text import Text

from penstock.cli.arguments import PRIORITIES
from penstock.cli.output import MISSING, printable
from penstock.models import ListedMessage, QueueSettings, QueueStatistics

from ..output.cells import Grid, amount, brief, joined, rate
from .history import Trail
from .snapshot import Details
from .sparkline import sparkline
from .theme import of_state

__all__ = ["detail_lines"]

# Between two tables that stand side by side.
GAP = 4
# Where the count of parked messages stops.
MOST_COUNTED = 1000


def detail_lines(
    details: Details, trail: Trail, at: datetime, *, state: str, width: int, symbols: str
) -> list[Text]:
    """All lines; the view cuts out those that fit."""
    queue = details.queue
    title = [
        Text(f" {printable(queue.name)}", "title"),
        Text(state, of_state(state)),
        *_origin(queue.settings),
    ]
    return [
        joined(title, width),
        joined(_counts(details), width),
        *_rates(trail, width, symbols),
        Text(),
        *_wrapped(_settings(queue.settings), width),
        *_breakdowns(details, width),
        *_section("DEAD LETTERS, the last ones", _dead(details, at), width),
        *_parked(details, at, width),
        *_section("IN FLIGHT", _messages(details.active, at), width),
        *_section("NEXT", _messages(details.coming, at), width),
    ]


def _origin(settings: QueueSettings) -> list[Text]:
    pieces = [Text(f"topic {printable(settings.topic_name)}" if settings.topic_name else "no topic")]
    pieces.append(Text(f"created {settings.created_at:%Y-%m-%d %H:%M}", "faint"))
    if settings.paused_at is not None:
        pieces.append(Text(f"paused since {settings.paused_at:%Y-%m-%d %H:%M}", "paused"))
    if settings.exclusive:
        pieces.append(Text("exclusive", "faint"))
    return pieces


def _counts(details: Details) -> list[Text]:
    counts = details.queue.counts
    dead = counts.dead_count or 0
    estimates = [Text("estimates", "faint")] if counts.is_estimate else []
    return [
        Text.assemble(" pending ", (amount(counts.pending_count), "title")),
        Text.assemble("active ", (amount(counts.processing_count), "title")),
        Text.assemble("delayed ", (amount(counts.delayed_count), "title")),
        Text.assemble("waiting ", (amount(counts.waiting_count), "title")),
        Text.assemble("dead ", (amount(dead), "bad" if dead else "title")),
        Text.assemble("oldest ", (brief(counts.oldest_pending_seconds), "title")),
        *estimates,
    ]


def _rates(trail: Trail, width: int, symbols: str) -> list[Text]:
    highest = max((each or 0.0 for each in (*trail.incoming, *trail.outgoing)), default=0.0)
    now = trail.now
    lines = []
    for name, rates, last in (("in", trail.incoming, now.incoming), ("out", trail.outgoing, now.outgoing)):
        bars = sparkline(rates, min(60, max(0, width - 16)), highest, symbols)
        lines.append(Text.assemble(f" {name:<3} ", (f"{rate(last):>6}", "title"), "/s ", (bars, name)))
    return lines


def _settings(settings: QueueSettings) -> list[Text]:
    shown = {
        "max attempts": settings.max_delivery_attempts or "no limit",
        "visibility timeout": brief(settings.visibility_timeout_seconds),
        "retry delays": ", ".join(map(brief, settings.retry_delays)) or MISSING,
        "ttl": brief(settings.message_ttl_seconds) if settings.message_ttl_seconds else "no limit",
        "retain completed": _kept(settings.retain_completed_seconds),
        "retain dead": _kept(settings.retain_dead_seconds),
        "max active": settings.max_active or "no limit",
        "tenant max active": settings.tenant_max_active or "no limit",
        "notify": "yes" if settings.notify else "no",
    }
    return [Text.assemble((f"{name} ", "faint"), str(value)) for name, value in shown.items()]


def _kept(seconds: int) -> str:
    return brief(seconds) if seconds else "nothing"


def _wrapped(pieces: Sequence[Text], width: int) -> list[Text]:
    """Pieces in as many lines as they take."""
    lines, left = [], list(pieces)
    while left:
        line = Text(" ")
        while left and (line.cell_len == 1 or line.cell_len + left[0].cell_len + 3 <= width):
            line.append("" if line.cell_len == 1 else "   ")
            line.append_text(left.pop(0))
        line.truncate(max(0, width))
        lines.append(line)
    return lines


def _section(title: str, grid: Grid, width: int) -> list[Text]:
    shown = [Text(" none", "faint")] if grid.is_empty else grid.lines(width)
    return [Text(), Text(f" {title}", "title"), *shown]


def _breakdowns(details: Details, width: int) -> list[Text]:
    """By priority and by tenant; side by side where there is room."""
    by_priority = _breakdown(details.by_priority, "PRIORITY", width)
    by_tenant = _breakdown(details.by_tenant, "TENANT", width)
    left = max(line.cell_len for line in by_priority)
    if left + GAP + max(line.cell_len for line in by_tenant) > width:
        return [*by_priority, *by_tenant]
    pairs = zip_longest(by_priority, by_tenant, fillvalue=Text())
    return [Text.assemble(one, " " * (left + GAP - one.cell_len), other) for one, other in pairs]


def _breakdown(rows: Sequence[QueueStatistics], of: str, width: int) -> list[Text]:
    title = f"BY {of} (ESTIMATE)" if any(each.is_estimate for each in rows) else f"BY {of}"
    grid = Grid((of, "PENDING", "ACTIVE", "DELAYED", "WAITING", "OLDEST"), right=(1, 2, 3, 4, 5))
    for each in rows:
        if each.pending_count or each.processing_count:
            tenant = each.tenant or "(of no tenant)"
            grid.add(
                tenant if each.priority is None else PRIORITIES[each.priority],
                amount(each.pending_count),
                amount(each.processing_count),
                amount(each.delayed_count),
                amount(each.waiting_count),
                brief(each.oldest_pending_seconds),
            )
    return _section(title, grid, width)


def _messages(messages: Sequence[ListedMessage], at: datetime) -> Grid:
    grid = Grid(("ID", "STATE", "PRIORITY", "ATTEMPTS", "AGE", "TENANT", ""), right=(0, 3, 4))
    for each in messages:
        when = ""
        if each.due_at is not None:
            when = f"due in {brief(int((each.due_at - at).total_seconds()))}"
        elif each.leased_until is not None:
            left = int((each.leased_until - at).total_seconds())
            when = f"leased for {brief(left)} more" if left >= 0 else f"lease over for {brief(-left)}"
        grid.add(
            str(each.message_id),
            each.state,
            PRIORITIES[each.priority],
            str(each.delivery_attempts),
            brief(int((at - each.published_at).total_seconds())),
            each.tenant or MISSING,
            when,
        )
    return grid


def _parked(details: Details, at: datetime, width: int) -> list[Text]:
    """Messages that workers could not run, by task; no section where there are none."""
    if not details.parked:
        return []
    grid = Grid(("TASK", "MESSAGES", "OLDEST", "READY AGAIN"), right=(1,))
    for each in details.parked:
        grid.add(
            printable(each.task_name),
            f"{each.parked_count:,}{'+' if each.parked_count >= MOST_COUNTED else ''}",
            f"{brief(int((at - each.parked_since).total_seconds()))} ago",
            f"in {brief(max(0, int((each.next_due_at - at).total_seconds())))}",
        )
    return _section("PARKED, no worker could run them", grid, width)


def _dead(details: Details, at: datetime) -> Grid:
    grid = Grid(("ID", "DIED", "ATTEMPTS", "REASON", "ERROR"), right=(0, 2))
    for each in details.dead:
        error = (each.last_error or MISSING).strip().splitlines() or [MISSING]
        grid.add(
            str(each.message_id),
            f"{brief(int((at - each.moved_at).total_seconds()))} ago",
            str(each.delivery_attempts),
            each.reason.replace("_", " "),
            Text(error[-1], "bad"),
        )
    return grid
