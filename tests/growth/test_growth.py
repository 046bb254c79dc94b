"""The cost of every case at two sizes: it grows by its law, and not with what it should not."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
import pytest
from bench.growing.turnover import turn_over
from bench.holders import held_snapshot

from penstock.embedded import Server

from ..conftest import Servers
from .case import Case, old_snapshot
from .cases import CASES

# Calls that scan a range of an index. All others read by key; `make bench-growth` measures them, too.
SCANS = (
    "a page of",
    "consume_",
    "explain_delivery",
    "get_queue_statistics",
    "publish_message",
    "purge_dlq",
    "requeue",
)


def cost_at(case: Case, size: int, servers: Servers, server: Server) -> float:
    with ExitStack() as stack:
        dsn = stack.enter_context(servers.database(server))
        if case.holds_vacuum_back:
            stack.enter_context(old_snapshot(dsn))
        with psycopg.connect(dsn, autocommit=True) as sql:
            case.build(sql, size)
        with psycopg.connect(dsn, autocommit=True) as caller:
            return case.measure(caller, size)


def cost_after_a_turnover(case: Case, size: int, servers: Servers, server: Server) -> float:
    """As many dead rows as live ones, which vacuum cannot remove."""
    with (
        servers.database(server) as dsn,
        held_snapshot(dsn, writes=False),
        psycopg.connect(dsn, autocommit=True) as sql,
    ):
        base = turn_over(sql, lambda: case.build(sql, size))
        case.build(sql, size)
        with psycopg.connect(dsn, autocommit=True) as caller:
            return case.measure(caller, size, base)


def name_of(case: Case) -> str:
    return f"{case.name}, {case.grows}, {case.cost}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_growth(case: Case, servers: Servers, server18: Server) -> None:
    small, large = (cost_at(case, size, servers, server18) for size in case.sizes)
    assert large <= case.most * small, (
        f"{small:.0f} {case.cost} at {case.sizes[0]}, {large:.0f} at {case.sizes[1]}: "
        f"{large / small:.2f} times, {case.most} allowed ({case.law})"
    )


@pytest.mark.parametrize("case", [case for case in CASES if case.name.startswith(SCANS)], ids=name_of)
def test_growth_with_vacuum_held_back(case: Case, servers: Servers, server18: Server) -> None:
    small = cost_at(case, case.sizes[0], servers, server18)
    large = cost_after_a_turnover(case, case.sizes[1], servers, server18)
    assert large <= case.most * small, (
        f"{small:.0f} {case.cost} at {case.sizes[0]}, {large:.0f} at {case.sizes[1]} with vacuum held back: "
        f"{large / small:.2f} times, {case.most} allowed ({case.law})"
    )
