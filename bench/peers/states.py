"""What other messages in its queue cost our worker: a drain beside each kind, against the plain one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg

from bench import report, turns
from bench.peers import measures
from bench.peers.roster import CONTESTANTS, OURS
from bench.peers.runner import POLL_SECONDS, PeerError, Program
from bench.report import Goal
from bench.server import tidy
from penstock import Client

QUEUE = "default"
IN_FRONT = 10_000
CAP = 2_000
"""More than the worker has slots: a cap that does not bind should cost little."""
SLEEP_SECONDS = 600
WANTED = 0.8
"""Of the plain drain."""
PLAIN = "plain"
RETRYING = "retrying"
WANTED_RETRYING = 0.5
"""Of the plain drain: every task runs, and is settled, twice."""

Connection = psycopg.Connection[Any]

SEND = """
select count(*) from penstock.send_messages(
    'default', array_fill(%s::jsonb, array[%s::int]), headers => jsonb_build_object('task', %s::text),
    priority => %s
)
"""
FAIL_ALL = """
select count(penstock.nack_message(m.queue_name, m.message_id, m.consumer_token, 0, 'failed'))
from penstock.consume_messages_batch('default', 'an earlier worker', 60, 10000) m
"""
UNSETTLED = """
select exists (select from penstock.ready r where r.headers ->> 'task' = 'noop')
    or exists (select from penstock.active a where a.headers ->> 'task' = 'noop')
    or exists (select from penstock.scheduled s where s.headers ->> 'task' = 'noop')
"""


@dataclass(frozen=True, slots=True)
class State:
    """What is in the queue before the tasks that are drained.

    prepare puts it there; the number of tasks among it that are drained, too.
    """

    title: str
    prepare: Callable[[Connection], int]
    app: str = "bench.peers.penstock:app"
    options: tuple[str, ...] = ()


def _send(connection: Connection, task_name: str, number: int, payload: str, priority: int = 2) -> None:
    connection.execute(SEND, (payload, number, task_name, priority))


def _nothing(_connection: Connection) -> int:
    return 0


def _unknown(connection: Connection) -> int:
    _send(connection, "not_here", IN_FRONT, "{}")
    return 0


def _retried(connection: Connection) -> int:
    _send(connection, "noop", IN_FRONT, '{"number": 0}')
    connection.execute(FAIL_ALL)
    return IN_FRONT


def _full_kind(connection: Connection) -> int:
    _send(connection, "sleep", IN_FRONT, f'{{"seconds": {SLEEP_SECONDS}}}')
    return 0


def _capped(connection: Connection) -> int:
    with Client(connection.info.dsn) as client:
        client.alter_queue(QUEUE, max_active=CAP)
    return 0


STATES: Mapping[str, State] = {
    PLAIN: State("nothing else", _nothing),
    "unknown": State(f"{report.count(IN_FRONT)} messages of an unknown task in front", _unknown),
    "retried": State(f"{report.count(IN_FRONT)} retried tasks in front", _retried),
    "full": State(
        f"{report.count(IN_FRONT)} tasks for threads in front, all threads busy",
        _full_kind,
        app="bench.peers.penstock_kinds:app",
        options=("--grace", "0"),
    ),
    "capped": State(f"max_active {CAP}, set from outside", _capped),
    RETRYING: State("every task fails once and is retried", _nothing, app="bench.peers.penstock_retries:app"),
}


@dataclass(frozen=True, slots=True)
class Drain:
    """One drain of known tasks: how many, in which time."""

    tasks: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.tasks / self.seconds


def measure(database: Callable[[str], str], tasks: int, rounds: int, limit: float) -> dict[str, list[Drain]]:
    """A drain in each state, in turn; each in a fresh database."""

    def slice_of(name: str) -> Callable[[], Drain]:
        return lambda: _drain(database(f"state_{name}"), STATES[name], tasks, limit)

    return turns.turns({name: slice_of(name) for name in STATES}, rounds)


def _drain(dsn: str, state: State, tasks: int, limit: float) -> Drain:
    """From the begin of a first, urgent task until all known tasks are settled, or the limit is over."""
    ours = CONTESTANTS[OURS]
    measures.setup(ours, dsn)
    with Client(dsn) as client:
        client.declare_queue(QUEUE)
    with psycopg.connect(dsn, autocommit=True) as connection:
        expected = state.prepare(connection) + tasks + 1
        _send(connection, "noop", 1, '{"number": 0}', priority=0)
        measures.fill(ours, dsn, tasks)
        tidy(dsn, checkpoint=True)
        worker = Program(ours, dsn, "work", expected=expected, app=state.app, options=state.options)
        with worker:
            begun = next(worker.lines(), None)
            if begun is None:
                raise PeerError(f"the worker did not begin, {state.title}:\n{worker.output()}")
            began_at, count = begun.figures[1], 1
            while count < expected and (left := began_at + limit - time.monotonic()) > 0:
                line = next(worker.lines(left), None)
                count = count if line is None else int(line.figures[0])
            while count >= expected and connection.execute(UNSETTLED).fetchone() != (False,):
                time.sleep(POLL_SECONDS)
            drained = Drain(count, time.monotonic() - began_at)
    print(f"  {state.title}: {report.count(drained.tasks)} tasks, {report.count(drained.rate)}/s", flush=True)
    return drained


def _ratio(found: Mapping[str, Sequence[Drain]], name: str) -> turns.Ratio:
    return turns.Ratio.of([each.rate for each in found[name]], [each.rate for each in found[PLAIN]])


def table(found: Mapping[str, Sequence[Drain]]) -> str:
    """The median rate of each state, and its ratio to the plain drain of the same round."""
    rows = []
    for name, drains in found.items():
        ratio = _ratio(found, name)
        rate = median(each.rate for each in drains)
        spread = f"{ratio.lowest:.3f} - {ratio.highest:.3f}"
        rows.append((STATES[name].title, report.count(rate), f"{ratio.middle:.3f}", spread))
    return report.table(("in the queue", "drain/s", "of the plain one", "from - to"), rows)


def goals(found: Mapping[str, Sequence[Drain]]) -> list[Goal]:
    return [
        report.at_least(
            f"drain of the plain one: {STATES[name].title}",
            _ratio(found, name).middle,
            WANTED_RETRYING if name == RETRYING else WANTED,
        )
        for name in found
        if name != PLAIN
    ]
