"""`make bench-growth`: its arithmetic, its page, and the database that it builds twice."""

from __future__ import annotations

from dataclasses import replace

from bench.growing import costs
from bench.growing.costs import BEGIN, END, Finding
from bench.growing.turnover import turn_over

from ..conftest import Connect
from .case import Case, Connection
from .cases import CASES
from .filling import fill_ready

CASE = Case("f()", "rows", "constant", lambda *_: None, "select 1", (10, 100), most=2)


def test_the_page_lists_every_case_and_no_other() -> None:
    listed = [costs.identity(cells) for cells in costs.listed(costs.PAGE.read_text("utf-8"))]
    assert listed == [costs.identity_of(case) for case in CASES], (
        "out of step: python -m bench.growth --missing --page docs/explanation/costs.md"
    )


def test_two_cases_of_one_call_differ_in_the_page() -> None:
    assert len({costs.identity_of(case) for case in CASES}) == len(CASES)


def test_ratios_are_against_the_small_size() -> None:
    finding = Finding(CASE, (100, 1000), small=20, large=30, held=39)
    assert (finding.ratio, finding.held_ratio) == (1.5, 1.95)
    assert costs.row(finding) == ("f()", "rows", "100", "1,000", "constant", "20 blocks", "30", "1.5", "1.95")
    assert not finding.is_missed
    assert replace(finding, large=41).is_missed
    assert replace(finding, held=41).is_missed
    assert costs.row(replace(finding, held=None))[-1] == "-"


def test_a_cost_of_nothing_is_no_error() -> None:
    assert Finding(CASE, CASE.sizes, small=0, large=0, held=0).ratio == 0


def test_a_page_keeps_its_prose_and_gets_its_rows_in_the_order_of_the_cases() -> None:
    other = replace(CASE, name="g()", cost="locks")
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert costs.missing(page, [CASE, other]) == [CASE, other]
    rows = [costs.row(Finding(case, (10, 100), 1, 1, 1)) for case in (other, CASE)]
    page = costs.written(page, costs.ordered(rows, [CASE, other]), "18.6")
    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert [cells[0] for cells in costs.listed(page)] == ["f()", "g()"]
    assert costs.missing(page, [CASE, other, replace(CASE, cost="locks")]) == [replace(CASE, cost="locks")]
    assert costs.ordered(costs.listed(page), [other]) == [list(rows[0])]


def _turned_over(sql: Connection) -> None:
    """A queue with a cap, messages and a partition."""
    sql.execute("select penstock.create_queue('q', max_active => 3)")
    fill_ready(sql, "q", 100)
    claimed = sql.execute(
        "select count(*) from penstock.consume_messages_batch('q', batch_size => 1)"
    ).fetchone()
    assert claimed == (1,)
    sql.execute(
        "create table penstock.done_2000 partition of penstock.done"
        " for values from ('2000-1-1') to ('2000-1-2')"
    )


def _facts(sql: Connection, base: int) -> object:
    return sql.execute(
        """select
        (select array_agg((q.id, q.name)::text) from penstock.queues q),
        (select array[min(id) - %(base)s, max(id) - %(base)s, count(*)] from penstock.ready),
        (select array_agg(f.ranks[3] - %(base)s) from penstock.floors f where f.previous_tick is not null),
        (select array_agg(a.id - %(base)s) from penstock.active a),
        (select count(*) from penstock.permits)""",
        {"base": base},
    ).fetchall()


def test_a_database_that_turned_over_differs_in_its_dead_rows_alone(connect18: Connect) -> None:
    sql, holder = connect18(), connect18()
    with sql.transaction(force_rollback=True):
        _turned_over(sql)
        fresh = _facts(sql, 0)
    sql.execute("vacuum penstock.ready")
    sql.execute("select setval('penstock.message_ids', 1, false)")
    sql.execute("alter table penstock.queues alter id restart")
    holder.execute("begin isolation level repeatable read")
    holder.execute("select pg_current_snapshot()")
    base = turn_over(sql, lambda: _turned_over(sql))
    assert sql.execute("select count(*) from penstock.queues").fetchone() == (0,)
    _turned_over(sql)
    assert _facts(sql, base) == fresh
    # The ids of the past are below the floors, as after maintain(), and above 0.
    assert base >= 100
    assert sql.execute("select min(rank) from penstock.floors f, unnest(f.ranks) rank").fetchone() == (base,)
    sql.execute("vacuum penstock.ready")
    dead = sql.execute("select pg_stat_get_dead_tuples('penstock.ready'::regclass)").fetchone()
    assert dead is not None
    assert dead[0] >= 100
