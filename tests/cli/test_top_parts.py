"""The parts of `penstock top` that need neither a terminal nor a database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.cells import cell_len

from penstock.cli.output.cells import amount, brief, cell, rate
from penstock.cli.screen.choices import Choices, Look, Quit, Refresh, SetPaused, View
from penstock.cli.screen.columns import COLUMNS, chosen, widths_of
from penstock.cli.screen.history import History
from penstock.cli.screen.keys import Keys
from penstock.cli.screen.snapshot import Details, Place, Queue, Snapshot
from penstock.cli.screen.sparkline import ASCII, BLOCKS, sparkline, symbols_for
from penstock.cli.screen.view import Scene, picture
from penstock.cli.top import SORTS
from penstock.diagnoses import ParkedDiagnosis
from penstock.models import DeadLetter, ListedMessage, ListedWorker, QueueSettings, QueueStatistics

START = datetime(2030, 1, 1, tzinfo=UTC)


def make_queue(name: str = "q", *, paused: bool = False, number: int = 1, **counts: Any) -> Queue:
    settings = QueueSettings(
        id=number, name=name, topic_name=None, exclusive=False, keep_alive_until=None,
        paused_at=START if paused else None, created_at=START, max_delivery_attempts=3,
        visibility_timeout_seconds=30, visibility_backoff=1.0, retry_delays=(0,), message_ttl_seconds=None,
        retain_completed_seconds=counts.pop("retain", 60), retain_dead_seconds=60, max_payload_bytes=1,
        max_active=counts.pop("max_active", None), min_active=5, priority_shares=(40, 30, 20, 10),
        tenant_max_active=None, notify=True, restricted=False,
    )  # fmt: skip
    return Queue(settings, make_counts(name, **counts))


def make_counts(name: str, **counts: Any) -> QueueStatistics:
    given = {
        "pending_count": 0, "processing_count": 0, "completed_count": 0, "total_count": 0, "delayed_count": 0,
        "dead_count": 0, "oldest_pending_seconds": None, "waiting_count": 0, "priority": None, "tenant": None,
        "is_estimate": False,
    }  # fmt: skip
    return QueueStatistics(queue_name=name, **{**given, **counts})


def make_worker(*queues: str, is_alive: bool = True, running: Any = ()) -> ListedWorker:
    return ListedWorker(
        "t", "box\x1b", 1, "1", queues, (), 10, START, START, is_alive, False, 3, running
    )  # fmt: skip


def make_snapshot(seconds: float, *queues: Queue, workers: tuple[ListedWorker, ...] = ()) -> Snapshot:
    return Snapshot(START + timedelta(seconds=seconds), {each.name: each for each in queues}, workers)


# Keys


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b"q"], ["q"]),
        ([b"\x1b[A\x1bOB\x1b[5~"], ["up", "down", "page up"]),
        ([b"\x1b", b"[", b"B"], ["down"]),
        ([b"\x1b[1;5A"], ["up"]),
        ([b"\x1b[Z\x1b[200~x"], ["x"]),
        ([b"\x1b\x1b[A"], ["escape", "up"]),
        ([b"\r\n\x7f"], ["enter", "enter", "backspace"]),
        (["ü日".encode()[:1], "ü日".encode()[1:4], "ü日".encode()[4:]], ["ü", "日"]),
        ([b"\xff\x00\x01"], ["\N{REPLACEMENT CHARACTER}"]),
    ],
)
def test_keys_are_cut_out_of_what_comes(parts: list[bytes], expected: list[str]) -> None:
    keys = Keys()
    assert [key for part in parts for key in keys.feed(part)] == expected
    assert not keys.is_waiting


def test_a_lone_escape_is_a_key_after_a_silence() -> None:
    keys = Keys()
    assert keys.feed(b"a\x1b") == ["a"]
    assert keys.is_waiting
    assert keys.flush() == ["escape"]
    assert keys.flush() == []


# What keys do


def test_what_is_selected_stays_so_while_it_is_there() -> None:
    choices = Choices()
    choices.take(["a", "b", "c"], frozenset())
    assert choices.selected == "a"
    choices.press("down")
    choices.take(["c", "b", "a"], frozenset())
    assert choices.selected == "b"
    choices.take(["c", "a"], frozenset())
    assert choices.selected == "a"  # in its place
    choices.take([], frozenset())
    assert choices.selected is None
    for key in ("down", "end", "page up", "p", "enter", "s", "r", "g"):
        assert choices.press(key) is None


def test_what_is_selected_is_always_in_view() -> None:
    choices = Choices()
    choices.take([str(n) for n in range(100)], frozenset())
    for keys, first in (("down", 0), ("end", 90), ("up", 90), ("page up", 88), ("home", 0), ("page down", 1)):
        choices.press(keys)
        choices.bring_into_view(10)
        assert choices.first == first, keys
    choices.take(["10"], frozenset())
    choices.bring_into_view(10)
    assert choices.first == 0
    choices.bring_into_view(0)


def test_orders() -> None:
    choices = Choices()
    choices.take(["a", "b"], frozenset({"b"}))
    assert choices.press("enter") == Look("a")
    assert choices.view == "queue"
    assert choices.press("escape") is None
    shown: str = choices.view
    assert shown == "queues"
    choices.press("p")
    assert choices.ask is not None
    assert choices.press("q") is None  # no is the answer to the question
    choices.press("j")
    choices.press("p")
    assert choices.press("y") == SetPaused("b", False)
    assert choices.press("y") is None
    choices.press("/")
    assert choices.press("q") is None
    assert choices.pattern == "q"
    assert choices.press("interrupt") == Quit()
    choices.press("enter")
    choices.press(" ")
    assert choices.press(" ") == Refresh()
    assert choices.press("q") == Quit()


def test_names_are_filtered_by_a_part_or_a_pattern() -> None:
    names = ["Mail.out", "mail.in", "bill[1]"]
    assert chosen(names, "") == names
    assert chosen(names, "MAIL") == names[:2]
    assert chosen(names, "*.in") == ["mail.in"]
    assert chosen(names, "l[1]") == ["bill[1]"]


# Rates and states


def test_what_came_in_is_what_is_there_and_what_went_out() -> None:
    history = History()
    history.add(make_snapshot(0, make_queue(pending_count=10, dead_count=1, completed_count=99)))
    assert history.seconds is None
    assert history.of("q").now.incoming is None
    history.add(
        make_snapshot(2, make_queue(pending_count=4, processing_count=3, dead_count=3, completed_count=5))
    )
    assert (history.of("q").now.incoming, history.of("q").now.outgoing) == (2.0, 2.5)
    # Purged: nothing came, and not less than nothing.
    history.add(make_snapshot(4, make_queue()))
    assert (history.of("q").now.incoming, history.of("q").now.outgoing) == (0.0, 0.0)
    # Another one of that name, one without a history, and a clock that was set back.
    history.add(make_snapshot(5, make_queue(number=2, pending_count=9)))
    assert history.of("q").now.incoming is None
    history.add(make_snapshot(6, make_queue(number=2, pending_count=9, retain=0)))
    assert history.all.now.incoming is None
    history.add(make_snapshot(1, make_queue(number=2)))
    assert len(history.of("q").incoming) == 4
    history.add(make_snapshot(2))
    assert len(history.of("q").incoming) == 0


def test_an_estimate_gives_no_rate_of_what_comes_in() -> None:
    history = History()
    history.add(make_snapshot(0, make_queue("q", pending_count=20_000, is_estimate=True)))
    history.add(make_snapshot(2, make_queue("q", pending_count=20_500, completed_count=4, is_estimate=True)))
    assert (history.of("q").now.incoming, history.of("q").now.outgoing) == (None, 2.0)


@pytest.mark.parametrize(
    ("queue", "state"),
    [
        (make_queue(), "idle"),
        (make_queue(paused=True, processing_count=1), "paused"),
        (make_queue(processing_count=5, max_active=5), "full"),
        (make_queue(processing_count=4, max_active=5), "busy"),
        (make_queue(pending_count=2, delayed_count=2), "delayed"),
        (make_queue(pending_count=2, delayed_count=1, waiting_count=1), "waiting"),
        (make_queue(pending_count=2, oldest_pending_seconds=1.0), "ready"),
        (make_queue(pending_count=2, oldest_pending_seconds=9.0), "no consumer"),
        (make_queue("served", pending_count=2, oldest_pending_seconds=9.0), "ready"),
        (make_queue("left", pending_count=2, oldest_pending_seconds=9.0), "no consumer"),
    ],
)
def test_the_state_of_a_queue(queue: Queue, state: str) -> None:
    history = History()
    history.add(make_snapshot(0, queue, workers=(make_worker("served"), make_worker("left", is_alive=False))))
    assert history.state(queue) == state


def test_a_queue_that_something_went_out_of_has_a_consumer() -> None:
    history = History()
    late: dict[str, Any] = {"pending_count": 2, "oldest_pending_seconds": 9.0}
    for number in range(8):
        queue = make_queue(completed_count=int(number == 2), **late)
        history.add(make_snapshot(number, queue))
        assert history.state(queue) == ("ready" if 2 <= number <= 6 else "no consumer"), number


# How it is written


def test_numbers_fit_into_six_cells() -> None:
    assert [amount(n) for n in (0, 99_999, 100_000, 999_999, 1_000_000, 10**8, 12 * 10**9)] == [
        "0", "99,999", "100k", "999k", "1.0M", "100M", "12.0G",
    ]  # fmt: skip
    assert [rate(n) for n in (None, 0.0, 0.04, 99.94, 99.96, 123_456.0)] == [
        "-",
        "0",
        "0.0",
        "99.9",
        "100",
        "123k",
    ]
    assert [brief(n) for n in (None, 0, 0.85, 59.9, 60, 200, 7500, 86400, 99 * 86400 + 3600, 10**8)] == [
        "-", "0s", "850ms", "59s", "1m", "3m20s", "2h05m", "1d", "99d01h", "1157d",
    ]  # fmt: skip
    for seconds in range(0, 10**7, 977):
        assert len(brief(seconds)) <= 6


def test_text_has_its_width_whatever_is_in_it() -> None:
    for text in ("", "short", "日本語の名前", "a\x1b[2Jb\n", "e\u0301" * 9, "x" * 40):
        for width in range(12):
            assert cell_len(cell(text, width)) == width
            assert "\x1b" not in cell(text, width)


def test_a_sparkline_has_its_newest_to_the_right() -> None:
    assert sparkline([0.0, None, 1.0, 4.0, 8.0], 6, 8.0, BLOCKS) == "   ▂▅█"
    assert sparkline([5.0] * 60, 3, 5.0, ASCII) == "@@@"
    assert sparkline([1.0], 0, 1.0, BLOCKS) == ""
    assert sparkline([0.001], 1, 8.0, BLOCKS) == "▁"
    assert symbols_for("utf-8") == BLOCKS
    assert {symbols_for(each) for each in ("ascii", "latin-1", "nonsense", None)} == {ASCII}


def test_columns_fit_and_go_one_by_one() -> None:
    names = {column.name for column in COLUMNS}
    for room in range(1, 250):
        for longest in (1, 12, 30, 255):
            widths = widths_of(room, longest)
            used = (
                sum(widths.values())
                + 2 * (len(names & set(widths)) - 1)
                + sum("trail" in each for each in widths)
            )
            assert used <= max(room, 10), (room, longest, widths)
    assert set(widths_of(119, 20)) == names | {"in trail", "out trail"}
    assert "in trail" in widths_of(99, 20)
    assert "out" in widths_of(79, 20)
    assert set(widths_of(39, 20)) == {"name", "pending", "state"}
    assert tuple(column.name for column in COLUMNS) == SORTS


@pytest.mark.parametrize("view", ["queues", "queue", "workers", "help"])
@pytest.mark.parametrize("number", [0, 1, 50])
def test_a_picture_fills_a_screen_of_any_size(view: View, number: int) -> None:
    queues = [make_queue(f"日本\x1b{n}", pending_count=n, dead_count=n, number=n) for n in range(number)]
    running = [{"task": "t\x1b", "since": START.isoformat()}, {"since": 3}, 7]
    workers = tuple(make_worker("a" * 50, "b", running=running) for _ in range(number))
    scene = Scene(Place("db\x1b", "h:1", "18.0"), ASCII, problem="gone\x1b" * 30 if number == 1 else "")
    choices = Choices(view=view)
    sizes = [(width, height) for width in (1, 9, 40, 80, 200) for height in (1, 2, 5, 8, 24, 60)]
    for at in range(3):
        if number and view == "queue":
            scene.details = make_details(queues[0])
        for width, height in sizes:
            lines = picture(scene, choices, START, width, height)
            assert len(lines) == height
            for line in lines:
                assert line.cell_len <= width, (width, height, line.plain)
                assert "\x1b" not in line.plain
        scene.history.add(make_snapshot(at, *queues, workers=workers))
        choices.press("down")


def test_a_breakdown_that_is_an_estimate_says_so() -> None:
    scene = Scene(Place("db", "h:1", "18.0"), ASCII)
    queue = make_queue("q", pending_count=1)
    scene.history.add(make_snapshot(0, queue))
    scene.details = make_details(queue)
    text = "\n".join(line.plain for line in picture(scene, Choices(view="queue"), START, 200, 60))
    assert "BY TENANT (ESTIMATE)" in text
    assert "BY PRIORITY (ESTIMATE)" not in text


def test_parked_messages_are_shown_by_task() -> None:
    scene = Scene(Place("db", "h:1", "18.0"), ASCII)
    queue = make_queue("q", pending_count=1)
    scene.history.add(make_snapshot(0, queue))
    scene.details = make_details(queue)
    text = "\n".join(line.plain for line in picture(scene, Choices(view="queue"), START, 200, 60))
    assert "PARKED, no worker could run them" in text
    assert re.search(r"\(none\) +1 +0s ago +in 0s", text), text
    assert "1,000+" in text


def make_details(queue: Queue) -> Details:
    message = ListedMessage(7, "active", 1, "ten\x1bant", 1, START, None, START, "t", None, None, None, "c")
    later = ListedMessage(8, "scheduled", 1, None, 1, START, START, None, None, None, None, None, "c")
    error = "a\n\x1b[2Jb"
    dead = DeadLetter(queue.name, 9, None, 3, "failed", error, (), START, 1, None, {}, START, "k", "c")
    blank = DeadLetter(queue.name, 9, None, 3, "failed", "\n", (), START, 1, None, {}, START, "k", "c")
    by_priority = (make_counts(queue.name, pending_count=1, priority=2),)
    by_tenant = (make_counts(queue.name, pending_count=1, is_estimate=True),)
    parked = (
        ParkedDiagnosis(queue.name, "ta\x1bsk", 1000, 0, START, START + timedelta(minutes=1)),
        ParkedDiagnosis(queue.name, "(none)", 1, 0, START, START),
    )
    return Details(queue, by_priority, by_tenant, parked, (message,), (later,), (dead, blank))
