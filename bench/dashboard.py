"""What the dashboard costs with 500 queues and a million messages: `make bench-dashboard`.

A process of `penstock dashboard` on a socket, and a PostgreSQL server of its own. Pages are timed from the
request to the last byte of the answer: without a holder of vacuum, with one after messages were turned over,
and without again.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import report
from bench.dashboards import measures, page
from bench.dashboards.browser import Browser, Load, Times, address, first_load, timed
from bench.dashboards.contents import LONG, Contents, Plan, build
from bench.dashboards.measures import Held, Lost, Redriven, Watched
from bench.dashboards.served import served
from bench.report import Goal
from bench.server import Host, host

QUICK = Plan(messages=60_000, deep_page=500, redriven=5_000, hours=6, recent_hours=0.2)
LIMITS = {"overview": 30, "queue": 50, "list": 30, "message": 50, "search, id": 100, "search, payload": 500}
OTHERS = 200
HUGE = "message, 50 MB"
TABS = 100


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured."""

    contents: Contents
    pages: Held
    searches: Mapping[str, Times]
    is_partial: bool
    alone: Watched
    crowd: Watched
    loads: Mapping[str, Load]
    redriven: Redriven
    live_again: tuple[float, ...]
    stopped: tuple[float, ...]
    lost: Lost
    deep: str


def measure(server: Host, plan: Plan, *, rounds: int, seconds: float) -> Results:
    """Everything, one after the other, in one database."""
    dsn = server.database("dashboard")
    tell(f"{report.count(plan.messages)} messages, {plan.queues} queues, {plan.hours:g} hours of history")
    contents = build(dsn, plan)
    with served(dsn) as dashboard:
        with Browser(dashboard.port) as browser:
            pages = measures.pages(contents, plan, browser)
            tell("searches")
            slow = measures.searches()
            searches = timed(browser, slow, max(3, rounds // 5), dashboard.meter())
            is_partial = measures.partial(browser, slow)
            loads = {
                name: first_load(browser, path)
                for name, path in (("overview", "/"), ("queue", address("queues", LONG)))
            }
        tell(f"{len(pages)} pages, {rounds} rounds each: before, with vacuum held back, and after")
        held = measures.held_back(dashboard, dsn, pages, rounds, plan.messages // 5)
        tell("tabs")
        alone = measures.watched(dashboard, dsn, 1, seconds)
        crowd = measures.watched(dashboard, dsn, TABS, seconds)
        tell("restart and stop")
        times = 3
        again = tuple(measures.live_again(dashboard) for _ in range(times))
        stopped = tuple(measures.stopped(dashboard, TABS) for _ in range(times))
        tell("redrive")
        redriven = measures.redriven(dashboard)
    tell("throughput beside samples")
    lost = measures.throughput_lost(dsn, 3.0, rounds)
    return Results(
        contents, held, searches, is_partial, alone, crowd, loads, redriven, again, stopped, lost,
        f"page {report.count(plan.deep_page)}",
    )  # fmt: skip


def judge(found: Results) -> list[Goal]:
    """The goals, and what was measured."""
    return [*_pages(found), *_searches(found), *_viewers(found), *_rest(found)]


def _pages(found: Results) -> list[Goal]:
    calm = found.pages.calm
    kinds = {
        kind: [name for name in calm if name != HUGE and name.partition(",")[0] == kind]
        for kind in ("overview", "queue", "list", "message")
    }
    kinds["queue"].append("queue with permits")
    goals = [_slowest(f"{kind}, p95", calm, names, LIMITS[kind]) for kind, names in kinds.items()]
    ratios = {kind: found.pages.ratio(names) for kind, names in kinds.items()}
    worst = max(ratios, key=lambda kind: ratios[kind])
    judged = {name for names in kinds.values() for name in names}
    others = [name for name in calm if name not in judged]
    return [
        *goals,
        report.at_most("the same with vacuum held back, p95", ratios[worst], 1.5, f"({worst})"),
        report.at_most(f"{found.deep} to page 1, median", calm[found.deep].p50 / calm["page 1"].p50, 1.2),
        _slowest("all other pages, p95", calm, others, OTHERS),
        _within("a page of 50 MB sends", calm[HUGE].sent / 1000, 100, "kB"),
    ]


def _slowest(goal: str, pages: Mapping[str, Times], names: Sequence[str], bound: float) -> Goal:
    """A goal for the page that took longest."""
    name = max(names, key=lambda name: pages[name].p95)
    note = "" if len(names) == 1 else f" ({name})"
    return _within(goal, pages[name].p95, bound, "ms", note)


def _searches(found: Results) -> list[Goal]:
    by_id = [name for name in found.pages.calm if name.startswith("search, ")]
    return [
        _slowest("search by id, all queues, p95", found.pages.calm, by_id, LIMITS["search, id"]),
        _slowest("search in payloads, p95", found.searches, list(found.searches), LIMITS["search, payload"]),
        Goal("then partial, and says so", "yes", "yes" if found.is_partial else "no", found.is_partial),
    ]


def _viewers(found: Results) -> list[Goal]:
    alone, crowd = found.alone, found.crowd
    return [
        _within("statements of a viewer and its page", crowd.statements, 0, "", digits=2),
        _within(
            f"{crowd.tabs} viewers, of a core", 100 * crowd.cpu, 5, "%", f" (one: {100 * alone.cpu:.1f} %)"
        ),
        _within(f"{crowd.tabs} viewers, memory", crowd.memory / 1e6, 100, "MB"),
        _within(
            "all updated",
            1000 * max(crowd.lags, default=float("inf")),
            250,
            "ms",
            f" ({len(crowd.lags)} ticks)",
        ),
        _within("bytes of a viewer, a second", crowd.bytes_per_second / 1000, 5, "kB"),
    ]


def _rest(found: Results) -> list[Goal]:
    samples = report.percentile(found.contents.samples, 0.95)
    load = max(found.loads.values(), key=lambda load: load.sent)
    return [
        _within("sample(), p95", samples, 100, "ms"),
        _within("throughput lost by samples", 100 * found.lost.part, 1, "%", digits=2),
        _within("first load, compressed", load.sent / 1000, 90, "kB"),
        _within("requests of the first load", max(one.requests for one in found.loads.values()), 8, ""),
        _within("our own script", load.own_script / 1000, 15, "kB"),
        _within(f"redrive of {report.count(found.redriven.messages)}", found.redriven.seconds, 60, "s"),
        _within("cancelled", found.redriven.cancelled, 1, "s", digits=2),
        _within("live again after a restart", max(found.live_again), 3, "s"),
        _within(f"stopped with {TABS} streams open", max(found.stopped), 2, "s", digits=2),
    ]


def _within(name: str, value: float, bound: float, unit: str, note: str = "", *, digits: int = 1) -> Goal:
    return Goal(
        name, f"<= {bound:g} {unit}".strip(), f"{value:.{digits}f} {unit}{note}".strip(), value <= bound
    )


def table(found: Results) -> list[tuple[str, ...]]:
    """The rows of all pages."""
    rows: list[tuple[str, ...]] = []
    for name, calm in [*found.pages.calm.items(), *found.searches.items()]:
        held = found.pages.held.get(name)
        rows.append(
            (
                name,
                f"{calm.processor_p50:.1f}",
                f"{calm.p50:.1f}",
                f"{calm.p95:.1f}",
                "-" if held is None else f"{held.p95:.1f}",
                f"{calm.sent / 1000:.1f}",
            )
        )
    return rows


HEAD = ("page", "processor, ms", "median, ms", "p95, ms", "held back: p95, ms", "sent, kB")


def tell(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=40, metavar="N", help="requests of each page in each phase"
    )
    parser.add_argument("--seconds", type=float, default=30, metavar="N", help="how long tabs are open")
    parser.add_argument("--quick", action="store_true", help="few messages and rounds, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables into this page")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    load = report.load()
    tell(load)
    plan, rounds, seconds = (QUICK, 5, 10.0) if given.quick else (Plan(), given.rounds, given.seconds)
    with host(count_statements=True) as server:
        found = measure(server, plan, rounds=rounds, seconds=seconds)
        version = server.version
    goals = judge(found)
    print(report.table(HEAD, table(found)))
    print()
    print(report.goals(goals))
    report.write_json(given.json, goals, {"load": load, "results": asdict(found)})
    if given.page is not None:
        rows = (HEAD, *table(found))
        page.write(given.page, goals, rows, contents=found.contents, version=version, load=load)
    sys.exit(any(goal.met is False for goal in goals))


if __name__ == "__main__":
    main()
