"""`make bench-dashboard`: what its tabs understand, its arithmetic and its page."""

from __future__ import annotations

import gzip
import socket

from bench.dashboards import page
from bench.dashboards.browser import Times, address
from bench.dashboards.contents import Plan
from bench.dashboards.page import BEGIN, END
from bench.dashboards.viewers import Tab, lags
from bench.report import Goal

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
EVENTS = b"retry: 1000\n\nid: ab12.7\nevent: tick\ndata: {}\n\nid: ab12.9\nevent: tick\ndata: {}\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _read(answer: bytes, step: int) -> Tab:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        tab = Tab(ours)
        for at in range(0, len(answer), step):
            tab.take(answer[at : at + step], float(at))
    return tab


def test_a_tab_reads_ticks_however_they_come() -> None:
    plain = HEAD + b"\r\n" + _chunk(EVENTS)
    packed = HEAD + b"Content-Encoding: gzip\r\n\r\n" + _chunk(gzip.compress(EVENTS))
    for answer in (plain, packed):
        for step in (1, 7, len(answer)):
            tab = _read(answer, step)
            assert [number for number, _ in tab.ticks] == [7, 9]
            assert tab.received == len(answer)


def test_a_tab_that_passed_over_a_tick_has_it_with_the_next_one() -> None:
    first, second = _read(HEAD, 99), _read(HEAD, 99)
    first.ticks = [(1, 10.0), (2, 12.0), (3, 14.0)]
    second.ticks = [(1, 10.1), (3, 14.25)]
    assert [round(lag, 3) for lag in lags([first, second], 10, 14)] == [0.1, 2.25]
    assert lags([first, second], 13, 15) == [0.25]


def test_a_tab_that_never_had_a_tick_is_not_passed_over() -> None:
    first, second = _read(HEAD, 99), _read(HEAD, 99)
    first.ticks = [(1, 10.0)]
    assert lags([first, second], 0, 20) == [float("inf")]


def test_the_deep_page_is_there() -> None:
    for plan in (Plan(), Plan(messages=60_000, deep_page=500, redriven=5_000)):
        assert plan.ready >= plan.page_size * plan.deep_page
        assert plan.ready + plan.redriven + plan.rest == plan.messages


def test_names_are_encoded_in_addresses() -> None:
    assert address("queues", "a/b", "messages", state="ready") == "/queues/a%2Fb/messages?state=ready"
    assert address("search", q="payload.a:1 x") == "/search?q=payload.a%3A1+x"


def test_percentiles() -> None:
    times = Times(tuple(map(float, range(50))), (1.0, 2.0), 10) + Times(
        tuple(map(float, range(50, 100))), (3.0,), 11
    )
    assert (times.p50, times.p95, times.processor_p50, times.sent) == (50.0, 95.0, 2.0, 11)


def test_a_page_keeps_its_prose() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    goals = [Goal("overview", "<= 30 ms", "12 ms", True), Goal("list", "<= 30 ms", "40 ms", False)]
    written = page.written(text, "2 processors.", goals, [("page", "p95"), ("overview", "12")])
    assert written.startswith(f"before\n{BEGIN}\n\n2 processors.\n")
    assert written.endswith(f"{END}\nafter\n")
    assert "old" not in written
    assert "| list | <= 30 ms | 40 ms | **missed** |" in written
    assert "| overview | 12 |" in written
