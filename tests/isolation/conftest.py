"""Specs: the sessions of a test, with what must hold checked at its end.

They share one database a server, emptied before each, and its sessions: new ones would take longer than the
test.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from penstock.embedded import Server
from tests.conftest import Servers
from tests.isolation.invariants import broken
from tests.isolation.session import Spec, lend_spec
from tests.sql.conftest import Lent

EMPTY = """
do $$
declare
    relation name;
begin
    for relation in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.done'::regclass and c.relname <> 'done_default'
    loop
        execute format('drop table penstock.%I', relation);
    end loop;
    foreach relation in array '{ready,scheduled,waiting,active,permits,tenants,line_checks,dead,done,dedup,
        payloads,payload_references,payload_orphans,floors,queues,topics,
        groups,group_results,schedules,workers}'::name[]
    loop
        execute format('delete from penstock.%I', relation);
    end loop;
    update penstock.upkeep set done_at = '-infinity', after_queue = 0;
    -- Only where a test moved the clock: all plans are made anew after that.
    if 'select clock_timestamp()' <> (select prosrc from pg_proc where oid = 'penstock.clock()'::regprocedure)
    then
        create or replace function penstock.clock() returns timestamptz language sql volatile
        as 'select clock_timestamp()';
    end if;
end
$$
"""


@pytest.fixture(scope="session")
def shared_database(servers: Servers, server: Server) -> Iterator[str]:
    with servers.database(server) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def shared_database18(servers: Servers, server18: Server) -> Iterator[str]:
    with servers.database(server18) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def lent() -> Iterator[Lent]:
    """The sessions of the tests, and the one that empties the database and looks at it in the end."""
    with ExitStack() as stack:
        yield Lent(stack)


@contextmanager
def emptied(dsn: str, lent: Lent) -> Iterator[Spec]:
    with lent.to_a_test(dsn) as owner:
        owner.execute(EMPTY)
        with lend_spec(lambda: lent.to_a_test(dsn), owner) as spec:
            yield spec
        assert broken(owner) == []


@pytest.fixture
def spec(shared_database: str, lent: Lent) -> Iterator[Spec]:
    """Sessions on each PostgreSQL that is here."""
    with emptied(shared_database, lent) as opened:
        yield opened


@pytest.fixture
def spec18(shared_database18: str, lent: Lent) -> Iterator[Spec]:
    """Sessions on the embedded PostgreSQL only."""
    with emptied(shared_database18, lent) as opened:
        yield opened
