"""The arithmetic of `make bench-send`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.sends import latency, many, pgbench
from bench.sends.latency import Latency
from bench.sends.many import Use, Window
from bench.sends.pgbench import STEP, Committed, PgbenchError
from bench.sends.throughput import Case, Slice


def test_the_rate_is_the_one_without_the_time_to_connect() -> None:
    printed = "initial connection time = 3.1 ms\ntps = 935.123456 (without initial connection time)\n"
    assert pgbench.tps(printed) == 935.123456
    with pytest.raises(PgbenchError, match="no rate"):
        pgbench.tps("pgbench (18.6)\n")


def test_the_lines_of_a_client_are_numbered_in_their_order() -> None:
    lines = ["0 1 250000 0 100 500000 0", "1 1 125000 0 100 750000 0", "0 2 500000 0 101 250000 0"]
    assert pgbench.numbered(lines) == {
        0: Committed(100.25, 100.5),
        STEP: Committed(100.625, 100.75),
        1: Committed(100.75, 101.25),
    }


def test_a_latency_joins_a_commit_with_its_handler_and_leaves_out_the_warm_up() -> None:
    committed = {0: Committed(10.0, 10.1), 1: Committed(11.5, 11.6), STEP: Committed(12.0, 12.2)}
    began = {0: 10.2, 1: 11.603, 7: 1.0}
    since_commit, since_call = latency.joined(committed, began, warm_up=1.0)
    assert since_commit == [pytest.approx(3.0)]
    assert since_call == [pytest.approx(103.0)]


def test_a_ratio_is_that_of_slices_of_the_same_round() -> None:
    case = Case("4 ms", 16, "penstock", references=[100.0, 400.0, 100.0])
    case.slices = [Slice(rate, 0, 0.0, 0.0) for rate in (50.0, 100.0, 80.0)]
    assert case.rate == 80.0
    assert (case.ratio.middle, case.ratio.lowest, case.ratio.highest) == (0.5, 0.25, 0.8)


@pytest.mark.parametrize(
    ("rate", "backlog", "kept_up"),
    [(100.0, 500, True), (100.0, 501, False), (4000.0, 2000, True), (4000.0, 2001, False)],
)
def test_a_consumer_keeps_up_if_little_is_left(rate: float, backlog: int, kept_up: bool) -> None:
    case = Case("4 ms", 1, "penstock", [Slice(rate, backlog, 0.0, 0.0)], [rate])
    assert case.kept_up is kept_up


def test_what_idle_consumers_do_is_not_part_of_a_send() -> None:
    idle = Window(Use(claims=20, consumers=1.25, server=2.5), seconds=10.0)
    busy = Window(Use(claims=50, consumers=5.0, server=7.5), seconds=20.0)
    calm = Window(Use(claims=50, consumers=2.5, server=5.0), seconds=20.0)
    found = many.cost("20 workers", [(idle, busy), (idle, calm), (idle, busy)], sends=10, unfinished=0)
    assert found.idle == Use(2.0, 0.125, 0.25)
    assert found.send == Use(1.0, 0.25, 0.25)
    assert (found.least_claims, found.most_claims) == (1.0, 1.0)


def test_a_latency_at_a_pace_that_was_not_reached_meets_no_goal() -> None:
    slow = Latency(1000, 388.0, 3000, 1.0, 2.0, 3.0, 1.0, 2.0, 0.1, 0.1, is_complete=True)
    assert [goal.met for goal in latency.goals([slow])] == [False, False]
    assert [goal.met for goal in latency.goals([replace(slow, reached=990.0)])] == [True, True]
