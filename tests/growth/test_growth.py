"""The cost of every case at two sizes: it grows by its law, and not with what it should not."""

from __future__ import annotations

import psycopg
import pytest

from penstock.embedded import Server

from ..conftest import Servers
from .case import Case
from .cases import CASES


def cost_at(case: Case, size: int, servers: Servers, server: Server) -> float:
    with servers.database(server) as dsn, psycopg.connect(dsn, autocommit=True) as sql:
        case.build(sql, size)
        with psycopg.connect(dsn, autocommit=True) as caller:
            return case.measure(caller, size)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}, {case.grows}, {case.cost}")
def test_growth(case: Case, servers: Servers, server18: Server) -> None:
    small, large = (cost_at(case, size, servers, server18) for size in case.sizes)
    assert large <= case.most * small, (
        f"{small:.0f} {case.cost} at {case.sizes[0]}, {large:.0f} at {case.sizes[1]}: "
        f"{large / small:.2f} times, {case.most} allowed ({case.law})"
    )
