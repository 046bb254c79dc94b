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
    and pid <> all(%s)
order by state = 'active' desc, random() limit 1
"""


@pytest.mark.slow
def test_backends_are_terminated(database18: str, connect18: Connect) -> None:
    load = Load(lambda: database18)
    load.prepare()
    killer = connect18()
    # A terminated backend stays visible for a while after its client knows. It is not killed twice.
    victims: list[int] = []
    with load.running():
        for _ in range(KILLS):
            # Until the last victim was missed, and the load got somewhere.
            load.wait_for(load.progress(sent=1, acked=1))
            death = load.progress(deaths=1)
            row = killer.execute(TERMINATE, (victims,)).fetchone()
            assert row is not None
            victims.append(row[0])
            load.wait_for(death)
    load.drain()
    assert load.record.deaths >= KILLS
    assert load.record.failures == []
    assert unexplained(load.record, killer.execute(DONE).fetchall()) == []
    assert broken(killer) == []
