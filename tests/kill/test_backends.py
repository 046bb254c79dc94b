"""Backends that are terminated at random moments."""

import pytest

from tests.conftest import Connect
from tests.isolation.invariants import broken
from tests.kill.load import Load
from tests.kill.verdict import DONE, unexplained

KILLS = 200

TERMINATE = """
select pid, pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
order by state = 'active' desc, random() limit 1
"""


@pytest.mark.slow
def test_backends_are_terminated(database18: str, connect18: Connect) -> None:
    load = Load(lambda: database18)
    load.prepare()
    killer = connect18()
    with load.running():
        for n in range(1, KILLS + 1):
            # Each kill waits for the last one's victim to be missed, and for the load to get somewhere.
            sent, acked = len(load.record.committed), len(load.record.acked)
            load.wait_for(lambda r, sent=sent, acked=acked: len(r.committed) > sent and len(r.acked) > acked)
            killer.execute(TERMINATE)
            load.wait_for(lambda r, n=n: r.deaths >= n)
    load.drain()
    assert load.record.deaths >= KILLS
    assert load.record.failures == []
    assert unexplained(load.record, killer.execute(DONE).fetchall()) == []
    assert broken(killer) == []
