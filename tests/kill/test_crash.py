"""A server that crashes under load, and comes back."""

import psycopg
import pytest

from penstock import schema
from penstock.embedded import throwaway
from tests.isolation.invariants import broken
from tests.kill.load import QUEUE, Load
from tests.kill.verdict import DONE, unexplained

CRASHES = 3
SETTINGS = {"max_prepared_transactions": "5"}


@pytest.mark.slow
def test_the_server_is_stopped_at_once() -> None:
    with throwaway(settings=SETTINGS) as server:
        with psycopg.connect(server.dsn()) as connection:
            schema.install(connection)
        load = Load(server.dsn)
        load.prepare()
        with load.running():
            for _ in range(CRASHES):
                load.wait_for(load.progress(sent=300, acked=300))
                server.stop("immediate")
                server.start()
        load.drain()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            assert load.record.failures == []
            assert load.record.deaths >= CRASHES
            assert unexplained(load.record, connection.execute(DONE).fetchall()) == []
            assert broken(connection) == []


@pytest.mark.slow
def test_a_prepared_publisher_outlives_a_crash() -> None:
    """Its lock is there again with it, so the floor stays below what it sent."""
    with throwaway(settings=SETTINGS) as server:
        with psycopg.connect(server.dsn()) as connection:
            schema.install(connection)
            connection.execute("select penstock.create_queue(%s, notify => false)", (QUEUE,))
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("begin")
            (sent,) = connection.execute("select penstock.send_message(%s, '1')", (QUEUE,)).fetchall()
            connection.execute("prepare transaction 'p'")
            connection.execute("select penstock.send_messages(%s, '{2,3}')", (QUEUE,))
        server.stop("immediate")
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("select penstock.consume_messages_batch(%s)", (QUEUE,))
            raised = connection.execute("select penstock.raise_floor(%s)", (QUEUE,)).fetchone()
            connection.execute("commit prepared 'p'")
            connection.execute("select penstock.raise_floor(%s)", (QUEUE,))
            claimed = connection.execute(
                "select message_id from penstock.consume_messages_batch(%s)", (QUEUE,)
            )
            assert raised == (False,)
            assert claimed.fetchall() == [sent]
            assert broken(connection) == []
