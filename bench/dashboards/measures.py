"""What is measured of a dashboard, one function each."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from bench import report
from bench.holders import held_snapshot
from bench.load import Pool
from bench.stage import Stage
from bench.turns import Ratio, turns

from .browser import Browser, Times, address, cursor_of, timed
from .contents import DEAD, LATER, LONG, ORDINARY, TENANTS, Contents, Plan
from .served import Served
from .traffic import everywhere, repeated, turn_over
from .viewers import lags, watching

ONE_ERROR = "TimeoutError: no answer"
OVERVIEW_EVENTS = "/events?all=1"
SAMPLED_EVERY = 0.2
DUE_EVERY = 10.0


# Pages


def pages(contents: Contents, plan: Plan, browser: Browser) -> dict[str, str]:
    """The pages that are timed, by name."""
    found = {
        "overview": "/",
        "queue": address("queues", LONG),
        "queue, a day": address("queues", LONG, range="1d"),
        "queue, 14 days": address("queues", f"{ORDINARY}3", range="14d"),
        "queue with permits": address("queues", DEAD),
    }
    for state, (queue, message) in contents.ids.items():
        found[f"message, {state}"] = address("queues", queue, "messages", message)
        if " " not in state:
            found[f"list, {state}"] = address("queues", queue, "messages", state=state)
    deep = cursor_of(browser, LONG, "ready", plan.page_size * (plan.deep_page - 1))
    found |= {
        "page 1": address("queues", LONG, "messages", state="ready"),
        f"page {report.count(plan.deep_page)}": address(
            "queues", LONG, "messages", state="ready", after=deep
        ),
        "tenants": address("queues", TENANTS, "tenants"),
        "settings": address("queues", LONG, "settings"),
        "dead letters": "/dead",
        "dead letters of a queue": address("dead", queue=DEAD),
        "dead letters of an error": address("dead", queue=DEAD, error=ONE_ERROR),
        "topics": "/topics",
        "groups": "/groups",
        "schedules": "/schedules",
        "workers": "/workers",
        "audit": "/audit",
        "operations": "/operations",
        "doctor": "/doctor",
        "metrics": "/metrics",
    }
    for name, state in (("id of a done message", "done"), ("id", "ready")):
        found[f"search, {name}"] = address("search", q=f"id:{contents.ids[state][1]}")
    found["search, unknown id"] = address("search", q="id:999999999999")
    return found


def searches() -> dict[str, str]:
    """Searches that read many messages."""
    return {
        "search, payload": address("search", q="payload.order.amount:none"),
        "search, payload of a queue": address("search", q=f"queue:{LATER} payload.customer:none"),
        "search, task": address("search", q='task:"no task"'),
        "search, tenant": address("search", q='tenant:"no tenant"'),
    }


@dataclass(frozen=True, slots=True)
class Held:
    """Each page while vacuum is held back, and without: before and afterwards."""

    calm: Mapping[str, Times]
    held: Mapping[str, Times]

    def ratio(self, names: Sequence[str]) -> float:
        """Of these pages together, while vacuum is held back against without."""
        held, calm = (
            [value for name in names for value in one[name].values] for one in (self.held, self.calm)
        )
        return report.percentile(held, 0.95) / report.percentile(calm, 0.95)


def held_back(served: Served, dsn: str, found: Mapping[str, str], rounds: int, messages: int) -> Held:
    """Time pages without a holder, with one while so many messages are turned over, and without again."""
    with Browser(served.port) as browser, watching(served.port, 1, OVERVIEW_EVENTS):
        meter = served.meter()
        before = timed(browser, found, rounds, meter)
        with held_snapshot(dsn, writes=False):
            turn_over(dsn, messages)
            held = timed(browser, found, rounds, meter)
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("vacuum")
        after = timed(browser, found, rounds, meter)
    return Held({name: before[name] + after[name] for name in found}, held)


def partial(browser: Browser, found: Mapping[str, str]) -> bool:
    """Whether a search that could not read everything says so."""
    result = browser.get("/api/v1" + found["search, payload"]).json()["result"]
    return result["is_complete"] is False and result["examined_count"] > 0


# Viewers


@dataclass(frozen=True, slots=True)
class Watched:
    """A time with so many tabs open, while all queues change."""

    tabs: int
    cpu: float
    """The part of a core that the process took."""

    memory: int
    bytes_per_second: float
    """Of the tab that got the most."""

    lags: tuple[float, ...]
    """Seconds, for each tick, until the last tab had it."""

    statements: float
    """That ran once or more for each tab. The reader and the doctor run others, which are fewer."""


def watched(served: Served, dsn: str, tabs: int, seconds: float) -> Watched:
    """So many tabs on the overview, each with its page loaded."""
    with everywhere(dsn), Browser(served.port) as browser, psycopg.connect(dsn, autocommit=True) as sql:
        counted = _statements(sql)
        for _ in range(tabs):
            browser.get("/")
        tick = browser.get("/").body.partition(b"since=")[2].partition(b"&")[0].decode()
        with watching(served.port, tabs, f"{OVERVIEW_EVENTS}&since={tick}") as crowd:
            time.sleep(5.0)  # until all tabs are there and have what was new
            cpu, since = served.cpu(), time.monotonic()
            before = [tab.received for tab in crowd.tabs]
            time.sleep(seconds)
            until = time.monotonic()
            cpu = (served.cpu() - cpu) / (until - since)
            received = [tab.received - had for tab, had in zip(crowd.tabs, before, strict=True)]
            memory = served.memory()
            time.sleep(1.0)  # a tick at the end is to arrive everywhere
            ran = {text: calls - counted.get(text, 0) for text, calls in _statements(sql).items()}
            found = lags(crowd.tabs, since, until)
    statements = sum(calls for calls in ran.values() if calls >= tabs) / tabs
    most = max(received) / (until - since)
    return Watched(tabs, cpu, memory, most, tuple(found), statements)


def _statements(sql: psycopg.Connection[tuple[str, int]]) -> dict[str, int]:
    """How often each statement was run as the role that pages read in."""
    return dict(
        sql.execute(
            "select query, sum(calls)::int8 from pg_stat_statements "
            "where userid = 'penstock_viewer'::regrole group by query"
        ).fetchall()
    )


# Actions


@dataclass(frozen=True, slots=True)
class Redriven:
    """How long an operation took, and one that was cancelled: until it stood still. Seconds."""

    messages: int
    seconds: float
    cancelled: float
    cancelled_at: int


def redriven(served: Served) -> Redriven:
    """Redrive all letters of an error; then begin with the others, and cancel that."""
    with Browser(served.port) as browser:
        begun = time.monotonic()
        plan = browser.act("/dead/redrive", queue=DEAD, error=ONE_ERROR)
        while (now := _operation(browser, plan["operation_id"]))["finished_at"] is None:
            time.sleep(0.05)
        seconds = time.monotonic() - begun
        if now["state"] != "done":
            raise RuntimeError(f"the redrive ended as {now['state']}: {now['note']}")
        other = browser.act("/dead/redrive", queue=DEAD)["operation_id"]
        while not _operation(browser, other)["done_count"]:
            time.sleep(0.02)
        begun = time.monotonic()
        browser.act(f"/operations/{other}/cancel")
        while (stopped := _operation(browser, other))["finished_at"] is None:
            time.sleep(0.02)
        cancelled = time.monotonic() - begun
        time.sleep(0.5)
        if stopped["state"] != "cancelled" or _operation(browser, other) != stopped:
            raise RuntimeError(f"the redrive goes on after it was cancelled: {stopped}")
    return Redriven(now["done_count"], seconds, cancelled, stopped["done_count"])


def _operation(browser: Browser, number: int) -> dict[str, Any]:
    found: dict[str, Any] = browser.get(f"/api/v1/operations/{number}").json()["operation"]
    return found


# Start and stop


def live_again(served: Served) -> float:
    """Seconds from the start of a new process until an open page, which tries again each second, is live."""
    served.stop()
    begun = time.monotonic()
    live: list[float] = []

    def tab() -> None:
        while not live:
            try:
                with watching(served.port, 1, OVERVIEW_EVENTS) as crowd:
                    while not crowd.tabs[0].ticks and not crowd.tabs[0].is_over:
                        time.sleep(0.01)
                    live.extend(at for _, at in crowd.tabs[0].ticks[:1])
            except OSError:
                pass
            time.sleep(0 if live else 1.0)

    thread = threading.Thread(target=tab, daemon=True)
    thread.start()
    served.start()
    thread.join(60)
    return live[0] - begun


def stopped(served: Served, tabs: int) -> float:
    """Seconds until a process that was told to stop is gone, with so many streams open."""
    with watching(served.port, tabs, OVERVIEW_EVENTS) as crowd:
        while not all(tab.ticks for tab in crowd.tabs):
            time.sleep(0.05)
        took = served.stop()
    served.start()
    return took


# What sampling costs


@dataclass(frozen=True, slots=True)
class Lost:
    """Throughput beside many samples against throughput without, and how many there were in a second."""

    ratio: Ratio
    samples_per_second: float

    @property
    def part(self) -> float:
        """What a sample in ten seconds takes."""
        return (1 - self.ratio.middle) / (self.samples_per_second * DUE_EVERY)


def throughput_lost(dsn: str, seconds: float, rounds: int) -> Lost:
    """Sends, claims and acks beside many more samples than are due, against none at all."""
    # As if the last sample had been taken ten seconds earlier: so the next one is due.
    again = """with last as (
            update penstock.samples set at = at - interval '20 s', taken_at = taken_at - interval '10 s'
            where tick = (select max(tick) from penstock.samples)
        )
        select"""
    with Pool(2) as pool, psycopg.connect(dsn, autocommit=True) as sql:
        stage = Stage(pool, dsn, 1000, 2)
        stage.keep_history(True)
        stage.fill("penstock")

        def work() -> float:
            samples = stage.run("penstock", 10, seconds, sends=True, claims=True, kept=True)
            return sum(each.settled for each in samples) / seconds

        def beside() -> float:
            with repeated(dsn, (again, "select penstock.sample()"), SAMPLED_EVERY):
                return work()

        work()
        before = _samples(sql)
        found = turns({"without": work, "beside": beside}, rounds)
        number = _samples(sql) - before
    return Lost(Ratio.of(found["beside"], found["without"]), number / (rounds * seconds))


def _samples(sql: psycopg.Connection[tuple[int]]) -> int:
    row = sql.execute("select max(tick) from penstock.samples").fetchone()
    assert row is not None
    return int(row[0])
