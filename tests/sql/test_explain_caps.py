"""explain_delivery where a cap holds a message back: which one, and how far back in line."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from .conftest import Clock
from .engine import Engine, Row
from .occupancy import let_in
from .test_explain import shown


def claim_all(engine: Engine, queue: str = "q") -> list[Row]:
    """Claims until there is nothing to be had."""
    claimed: list[Row] = []
    while messages := engine.take_many(queue, 100, vt_seconds=86400):
        claimed += messages
    return claimed


def full(engine: Engine, priority: int = 2, **settings: Any) -> list[Row]:
    """A queue with 8, 6, 4 and 2 permits of which a priority has taken all: what holds them."""
    engine.queue("q", **{"max_active": 20, "min_active": 0, **settings})
    engine.send_many("q", [1] * 20, priority=priority)
    claimed = claim_all(engine)
    for message in engine.rows("list_messages", "q", "ready"):
        engine.value("cancel_message", "q", message.message_id)
    return claimed


@pytest.mark.parametrize(
    ("priority", "permits"),
    [(0, "8 permits (40 percent), all 8 taken"), (2, "4 permits (20 percent), all 4 taken")],
)
def test_the_share_that_holds_it_back(engine: Engine, priority: int, permits: str) -> None:
    full(engine, priority)
    ids = engine.send_many("q", [1, 2, 3], priority=priority)
    text = f"ready: held back by max_active 20: priority {priority} has {permits}; "
    assert engine.explain("q", ids[0]) == text + "next in line"
    assert engine.explain("q", ids[1]) == text + "2nd in line, behind 1 other"
    assert engine.explain("q", ids[2]) == text + "3rd in line, behind 2 others"


def test_one_permit(engine: Engine) -> None:
    full(engine, priority=3, max_active=10)
    assert engine.explain("q", engine.send("q", priority=3)) == (
        "ready: held back by max_active 10: priority 3 has 1 permit (10 percent), which is taken;"
        " next in line"
    )


def test_a_share_that_min_active_changed(engine: Engine) -> None:
    full(engine, priority=0, min_active=5)
    assert engine.explain("q", engine.send("q", priority=0)) == (
        "ready: held back by max_active 20: priority 0 has 5 permits (40 percent, with min_active 5),"
        " all 5 taken; next in line"
    )


def test_a_permit_that_came_back_holds_no_message(engine: Engine) -> None:
    claimed = full(engine)
    message_id = engine.send("q")
    assert "held back" in engine.explain("q", message_id)
    engine.ack(claimed[0])
    assert engine.explain("q", message_id) == "ready: next in line, waits for a consumer"
    assert engine.take("q").message_id == message_id


def test_a_share_does_not_hold_back_others(engine: Engine) -> None:
    full(engine)
    assert engine.explain("q", engine.send("q", priority=3)) == "ready: next in line, waits for a consumer"


def test_more_urgent_ones_are_before_it_only_as_far_as_they_have_permits(engine: Engine) -> None:
    engine.queue("q", max_active=20, min_active=0)
    engine.send_many("q", [1] * 12, priority=0)
    engine.send_many("q", [1] * 2, priority=1)
    assert engine.explain("q", engine.send("q")) == "ready: behind 10 others"
    engine.take_many("q", 5)
    message_id = engine.send("q")
    assert engine.explain("q", message_id) == "ready: behind 6 others"
    # What it says comes true.
    assert [m.message_id for m in claim_all(engine)].index(message_id) == 6


def test_the_line_of_a_priority_is_its_own(engine: Engine) -> None:
    full(engine)
    engine.send_many("q", [1] * 5, priority=0)
    engine.send("q")
    assert engine.explain("q", engine.send("q")).endswith("2nd in line, behind 1 other")


@pytest.mark.parametrize(
    ("ahead", "permit"), [(3, "4th"), (10, "11th"), (11, "12th"), (12, "13th"), (20, "21st")]
)
def test_ordinals(engine: Engine, ahead: int, permit: str) -> None:
    full(engine)
    engine.send_many("q", [1] * ahead)
    assert engine.explain("q", engine.send("q")).endswith(f"; {permit} in line, behind {ahead} others")


def test_more_ordinals(engine: Engine) -> None:
    expected = {101: "102nd", 102: "103rd", 110: "111th", 111: "112th", 112: "113th", 9999: "10000th"}
    texts = engine.query("select n, penstock._in_line(n) from unnest(%s::bigint[]) n", list(expected))
    assert dict(texts) == {n: f"{permit} in line, behind {n} others" for n, permit in expected.items()}


def test_far_back_in_line(engine: Engine) -> None:
    full(engine)
    engine.send_many("q", [1] * 10000)
    assert engine.explain("q", engine.send("q")).endswith("all 4 taken; behind 10000 others or more")


def test_behind_messages_that_are_over(engine: Engine) -> None:
    """They do not count, but at most 10,000 of them are read."""
    full(engine)
    engine.send_many("q", [1] * 9998)
    engine.query("update penstock.ready set expires_at = clock_timestamp() returning id")
    engine.send("q")
    second, third, fourth = (engine.send("q") for _ in range(3))
    assert engine.explain("q", second).endswith("all 4 taken; 2nd in line, behind 1 other")
    assert engine.explain("q", third).endswith("all 4 taken; behind 2 others or more")
    assert engine.explain("q", fourth).endswith("all 4 taken; behind 2 others or more")


def test_tenants_take_turns_in_the_line(engine: Engine) -> None:
    full(engine)
    engine.send_many("q", [1] * 50, tenant="busy")
    text = engine.explain("q", engine.send("q", tenant="quiet"))
    assert text.endswith("2nd in line, behind 1 other")


def test_a_cap_that_was_lowered(engine: Engine) -> None:
    claimed = full(engine, max_active=4, priority_shares=[0, 0, 100, 0])
    message_id = engine.send("q")
    engine.value("alter_queue", "q", max_active=2)
    held = "ready: held back by max_active 2: priority 2 has 2 permits (100 percent), "
    lowered = "are taken, since the cap or the shares were changed: at least"
    assert engine.explain("q", message_id) == f"{held}4 {lowered} 3 must be settled first; next in line"
    engine.ack(claimed[0])
    assert engine.explain("q", message_id) == f"{held}3 {lowered} 2 must be settled first; next in line"
    engine.ack(claimed[1])
    assert engine.explain("q", message_id) == f"{held}all 2 taken; next in line"
    assert engine.nothing_to_take("q")
    engine.ack(claimed[2])
    assert engine.explain("q", message_id) == "ready: next in line, waits for a consumer"
    assert engine.take("q").message_id == message_id


def test_permits_that_other_priorities_still_have(engine: Engine) -> None:
    """The total is fixed: a priority with a larger share waits until the others give permits back."""
    engine.queue("q", max_active=4, min_active=0, priority_shares=[25, 25, 25, 25])
    engine.send_many("q", [1] * 4, priorities=[0, 1, 2, 3])
    claimed = claim_all(engine)
    engine.value("alter_queue", "q", priority_shares=[50, 50, 0, 0])
    message_id = engine.send("q", priority=0)
    assert engine.explain("q", message_id) == (
        "ready: held back by max_active 4: priority 0 has 2 permits (50 percent), 1 taken, 1 still held by"
        " other priorities, since the cap or the shares were changed; next in line"
    )
    assert engine.nothing_to_take("q")
    for message in claimed[2:]:
        engine.ack(message)
    assert engine.explain("q", message_id) == "ready: next in line, waits for a consumer"
    assert engine.take("q").message_id == message_id


def test_a_permit_given_back_under_an_old_snapshot(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    claimed = full(engine)
    message_id = engine.send("q")
    with sql.transaction():
        sql.execute("set transaction isolation level repeatable read")
        engine.ack(claimed[0])
    assert engine.explain("q", message_id) == (
        "ready: held back by max_active 20: priority 2 has 4 permits (20 percent), 3 taken, 1 given back"
        " under REPEATABLE READ or SERIALIZABLE, free with the next consume or maintain(); next in line"
    )
    assert engine.take("q").message_id == message_id


def test_a_cap_that_was_taken_away(engine: Engine) -> None:
    full(engine)
    message_id = engine.send("q")
    engine.value("alter_queue", "q", max_active=0)
    assert engine.explain("q", message_id) == "ready: next in line, waits for a consumer"


def test_a_lease_that_ran_out_holds_its_permit_until_it_is_taken_back(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_active=1)
    engine.send("q")
    engine.take("q", vt_seconds=5)
    message_id = engine.send("q")
    clock.advance(6)
    assert "held back by max_active 1" in engine.explain("q", message_id)
    engine.maintain()
    # The one that came back is before it.
    assert engine.explain("q", message_id) == "ready: behind 1 other"


@pytest.mark.parametrize(
    ("most", "permits"), [(3, "all 3 permits are taken"), (1, "its only permit is taken")]
)
def test_permits_that_all_priorities_share(engine: Engine, most: int, permits: str) -> None:
    engine.queue("q", max_active=most)
    engine.send_many("q", [1] * most, priority=3)
    assert len(claim_all(engine)) == most
    engine.send_many("q", [1, 2], priority=0)
    engine.send("q", priority=3)
    message_id = engine.send("q", priority=1)
    assert engine.explain("q", message_id) == (
        f"ready: held back by max_active {most}: {permits}; 3rd in line, behind 2 others"
    )


def test_shared_permits_that_are_free(engine: Engine) -> None:
    engine.queue("q", max_active=3)
    engine.send_many("q", [1, 2], priority=0)
    assert engine.explain("q", engine.send("q")) == "ready: behind 2 others"


def test_shared_permits_of_a_cap_that_was_lowered(engine: Engine) -> None:
    engine.queue("q", max_active=3)
    engine.send_many("q", [1] * 3)
    claim_all(engine)
    engine.value("alter_queue", "q", max_active=1)
    assert engine.explain("q", engine.send("q")) == (
        "ready: held back by max_active 1: 3 are taken, since the cap or the shares were changed:"
        " at least 3 must be settled first; next in line"
    )


def test_a_priority_without_permits(engine: Engine) -> None:
    engine.queue("q", max_active=10, priority_shares=[100, 0, 0, 0])
    engine.send("q", priority=1)
    message_id = engine.send("q", priority=1)
    assert engine.nothing_to_take("q")
    assert engine.explain("q", message_id) == (
        "ready: its priority has no permits: priority_shares {100,0,0,0} of max_active 10;"
        " 2nd in line, behind 1 other"
    )
    assert engine.explain("q", engine.send("q", priority=0)) == "ready: next in line, waits for a consumer"


def test_held_back_and_paused(engine: Engine) -> None:
    full(engine)
    message_id = engine.send("q")
    engine.value("pause_queue", "q")
    text = engine.explain("q", message_id)
    assert text.startswith(
        f"the queue is paused since {shown(engine, engine.settings('q').paused_at)}; ready: held"
    )


# tenant_max_active


def test_waiting_for_a_permit_of_its_tenant(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    ids = engine.send_many("q", [1] * 5, tenant="acme")
    let_in(engine)
    engine.send_many("q", [1] * 5, tenant="other")
    text = 'waiting: tenant "acme" has 2 of tenant_max_active 2 ready or active; '
    expected = ["next in line of its tenant", "behind 1 other of its tenant", "behind 2 others of its tenant"]
    assert [engine.explain("q", i) for i in ids[2:]] == [text + permit for permit in expected]
    claimed = claim_all(engine)
    assert engine.explain("q", ids[2]) == text + expected[0]
    engine.ack(claimed[0])
    assert engine.explain("q", ids[2]).startswith("ready: ")
    assert engine.explain("q", ids[3]) == text + expected[0]


def test_waiting_without_a_tenant(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send("q")
    let_in(engine)
    assert engine.explain("q", engine.send("q")) == (
        "waiting: what belongs to no tenant has 1 of tenant_max_active 1 ready or active;"
        " next in line of its tenant"
    )


def test_the_line_of_a_tenant_begins_with_the_most_urgent_and_those_that_came_back(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1, retry_delays=[0])
    engine.send("q", tenant="acme")
    let_in(engine)
    ids = engine.send_many("q", [1] * 4, tenant="acme", priorities=[2, 2, 0, 3])
    with engine.connection.transaction():
        message = engine.take("q", vt_seconds=86400)
    with engine.connection.transaction():
        engine.connection.execute("set transaction isolation level repeatable read")
        engine.nack(message)
    waiting = [(i, engine.explain("q", i)) for i in [ids[2], message.message_id, ids[0], ids[1], ids[3]]]
    assert [text.partition(" ready or active")[2] for _, text in waiting] == [
        ": maintain(), or a consume that finds too little, lets it in",
        "; behind 1 other of its tenant",
        "; behind 2 others of its tenant",
        "; behind 3 others of its tenant",
        "; behind 4 others of its tenant",
    ]
    # In that order they come in.
    order = []
    while messages := engine.take_many("q", 10):
        order += [m.message_id for m in messages]
        engine.ack(messages[0])
    assert order == [i for i, _ in waiting]


def test_far_back_in_the_line_of_a_tenant(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    ids = engine.send_many("q", [1] * 10002, tenant="acme")
    let_in(engine)
    assert engine.explain("q", ids[-1]).endswith("; behind 10000 others or more of its tenant")
    assert engine.explain("q", ids[-2]).endswith("; behind 9999 others of its tenant")


def test_a_cap_of_tenants_that_was_lowered(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=3)
    ids = engine.send_many("q", [1] * 4, tenant="acme")
    claimed = claim_all(engine)
    engine.value("alter_queue", "q", tenant_max_active=2)
    lowered = ", since the cap was lowered; next in line of its tenant"
    for _ in range(2):
        assert engine.explain("q", ids[3]) == (
            f'waiting: tenant "acme" has 3 of tenant_max_active 2 ready or active{lowered}'
        )
        # A call of maintain() makes no difference.
        engine.maintain()
    engine.ack(claimed[0])
    assert engine.explain("q", ids[3]) == (
        'waiting: tenant "acme" has 2 of tenant_max_active 2 ready or active; next in line of its tenant'
    )


def test_a_cap_of_tenants_that_was_raised(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    ids = engine.send_many("q", [1] * 4, tenant="acme")
    let_in(engine)
    engine.value("alter_queue", "q", tenant_max_active=3)
    comes = (
        'waiting: tenant "acme" has 1 of tenant_max_active 3 ready or active:'
        " maintain(), or a consume that finds too little, lets it in"
    )
    assert [engine.explain("q", i) for i in ids[1:3]] == [comes, comes]
    assert engine.explain("q", ids[3]).endswith("; behind 2 others of its tenant")
    assert engine.maintain()["admitted"] == 2
    assert [engine.state("q", i) for i in ids] == ["ready", "ready", "ready", "waiting"]


def test_a_cap_of_tenants_that_was_taken_away(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    ids = engine.send_many("q", [1, 2], tenant="acme")
    let_in(engine)
    engine.value("alter_queue", "q", tenant_max_active=0)
    text = engine.explain("q", ids[1])
    assert text.startswith("waiting: ")
    assert text.endswith(
        "tenant_max_active was taken away: maintain(), or a consume that finds too little, lets it in"
    )
    assert len(engine.take_many("q", 10)) == 2


def test_published_under_an_old_snapshot(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    engine.queue("q")
    engine.send("q", tenant="acme")
    with sql.transaction():
        sql.execute("set transaction isolation level repeatable read")
        message_id = engine.send("q", tenant="acme")
    text = engine.explain("q", message_id)
    assert text.startswith("waiting: published or given back under REPEATABLE READ")
    assert text.endswith("maintain(), or a consume that finds too little, lets it in")
    engine.maintain()
    assert engine.explain("q", message_id) == "ready: behind 1 other"


def test_published_under_an_old_snapshot_while_there_are_permits(
    engine: Engine, sql: psycopg.Connection[Any]
) -> None:
    engine.queue("q", tenant_max_active=2)
    engine.send("q", tenant="acme")
    let_in(engine)
    with sql.transaction():
        sql.execute("set transaction isolation level repeatable read")
        own, new = engine.send("q", tenant="acme"), engine.send("q", tenant="new")
    for message_id, tenant, held in ((own, "acme", 1), (new, "new", 0)):
        assert engine.explain("q", message_id) == (
            f'waiting: tenant "{tenant}" has {held} of tenant_max_active 2 ready or active:'
            " maintain(), or a consume that finds too little, lets it in"
        )
    engine.maintain()
    assert {engine.state("q", message_id) for message_id in (own, new)} == {"ready"}


def test_waiting_and_paused(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    ids = engine.send_many("q", [1, 2], tenant="acme")
    let_in(engine)
    engine.value("pause_queue", "q")
    since = shown(engine, engine.settings("q").paused_at)
    assert engine.explain("q", ids[1]).endswith(
        f"next in line of its tenant; the queue is paused since {since}"
    )


def test_waiting_beyond_its_time_to_live(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send("q", tenant="acme")
    message_id = engine.send("q", tenant="acme", ttl_seconds=5)
    clock.advance(6)
    assert "time to live" in engine.explain("q", message_id)
    engine.maintain()
    assert engine.explain("q", message_id).startswith("dead since")


def test_both_caps(engine: Engine) -> None:
    """The one that counts is the one that holds it back where it is."""
    engine.queue("q", max_active=2, tenant_max_active=2)
    ids = engine.send_many("q", [1] * 3, tenant="acme")
    other = engine.send("q", tenant="other")
    assert len(claim_all(engine)) == 2
    assert [engine.state("q", i) for i in [*ids, other]].count("active") == 2
    for message_id in [*ids, other]:
        text = engine.explain("q", message_id)
        state = engine.state("q", message_id)
        assert ("max_active 2: all 2 permits are taken" in text) == (state == "ready")
        assert ("of tenant_max_active 2" in text) == (state == "waiting")


def test_what_others_have_not_committed_is_not_seen(engine: Engine, connect: Connect) -> None:
    engine.queue("q", max_active=1)
    engine.send("q")
    with connect(autocommit=False) as other:
        other.execute("select * from penstock.consume_message('q')")
        assert engine.explain("q", engine.send("q")) == "ready: behind 1 other"
        other.commit()
    assert "held back by max_active 1" in engine.explain("q", engine.send("q"))
