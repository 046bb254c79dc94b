"""Lines of tenants under tenant_max_active: a waiting message whose tenant has a free permit is delivered.

Behind whatever else waits, in every isolation level, and however publishers, settlers and consumers miss each
other or roll back. Each interleaving is forced by hand.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.isolation.rewriting import DEFINITION, rewrite
from tests.isolation.session import Claim, Isolation, Session, Spec

BACKLOG = 300

strict = pytest.mark.parametrize("level", ["repeatable read", "serializable"])


def queue(session: Session, cap: int = 1, **settings: Any) -> None:
    session.value("create_queue", "q", max_delivery_attempts=0, tenant_max_active=cap, **settings)


def behind_a_backlog(session: Session, cap: int = 1) -> list[Claim]:
    """A queue in which another tenant has all its permits taken and hundreds of messages waiting."""
    queue(session, cap)
    session.send("q", BACKLOG + cap, tenant="busy")
    held = session.claim("q", cap, vt_seconds=3600)
    assert len(held) == cap
    session.maintain()
    return held


def delivered(session: Session, then: str) -> list[int]:
    """What one consume gets, of ten messages or of one, or after a single maintain()."""
    if then == "maintain":
        session.maintain()
    return [c.id for c in session.claim("q", 1 if then == "consume one" else 10)]


each_way = pytest.mark.parametrize("then", ["consume", "consume one", "maintain"])


@strict
@each_way
@pytest.mark.parametrize("known", [True, False])
def test_published_under_an_old_snapshot(spec18: Spec, level: Isolation, then: str, known: bool) -> None:
    a, b = spec18.sessions(2)
    behind_a_backlog(a)
    if known:
        a.send("q", tenant="quiet")
        a.ack("q", *a.claim("q"))
    b.begin(level)
    sent = b.send("q", tenant="quiet")
    b.commit()
    assert delivered(a, then) == sent


@each_way
def test_the_first_send_of_a_new_tenant_is_rolled_back(spec18: Spec, then: str) -> None:
    a, b = spec18.sessions(2)
    behind_a_backlog(a)
    b.begin()
    b.send("q", tenant="new")
    sent = a.send("q", tenant="new")
    b.rollback()
    assert delivered(a, then) == sent


@each_way
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_publisher_that_keeps_its_transaction_open_holds_up_no_new_tenant(
    spec18: Spec, then: str, ends: str
) -> None:
    a, b = spec18.sessions(2)
    behind_a_backlog(a)
    b.begin()
    (first,) = b.send("q", tenant="new")
    (sent,) = a.send("q", tenant="new")
    assert delivered(a, then) == [sent]
    b.run(ends)
    assert delivered(a, then) == []
    ((token,),) = spec18.look("select token from penstock.active where id = %s", sent)
    a.ack("q", Claim(sent, token, 1))
    assert delivered(a, then) == ([first] if ends == "commit" else [])


@each_way
@pytest.mark.parametrize("ack_commits_first", [True, False])
def test_settle_x_publish(spec18: Spec, then: str, ack_commits_first: bool) -> None:
    """Neither sees the other. A claim of one message that finds one has enough: the next finds too little."""
    a, b = spec18.sessions(2)
    behind_a_backlog(a)
    a.send("q", tenant="quiet")
    held = a.claim("q")
    a.begin()
    b.begin()
    a.ack("q", *held)
    sent = b.send("q", tenant="quiet")
    for session in (a, b) if ack_commits_first else (b, a):
        session.commit()
    assert delivered(a, then) == sent


@pytest.mark.parametrize("then", ["consume", "maintain"])
def test_settle_x_settle_of_which_one_rolls_back(spec18: Spec, then: str) -> None:
    """What the first would have let in is locked. The second frees its tenant permit, and leaves a check."""
    a, b = spec18.sessions(2)
    behind_a_backlog(a, cap=2)
    ids = a.send("q", 3, tenant="quiet")
    one, two = a.claim("q")
    a.maintain()
    assert spec18.look("select * from penstock.line_checks") == []
    b.begin()
    b.ack("q", one)
    a.ack("q", two)
    assert delivered(a, "consume") == []
    b.rollback()
    assert delivered(a, then) == [ids[2]]


@each_way
def test_a_settle_that_stays_open_and_rolls_back(spec18: Spec, then: str) -> None:
    a, b, c = spec18.sessions(3)
    behind_a_backlog(a)
    a.send("q", tenant="quiet")
    (held,) = a.claim("q")
    b.begin()
    b.ack("q", held)
    sent = a.send("q", tenant="quiet")
    for _ in range(3):
        assert delivered(c, then) == []
    b.rollback()
    assert delivered(c, then) == []
    a.ack("q", held)
    assert delivered(c, then) == sent


@strict
@each_way
def test_a_settle_under_an_old_snapshot(spec18: Spec, level: Isolation, then: str) -> None:
    a, b = spec18.sessions(2)
    behind_a_backlog(a)
    a.send("q", tenant="quiet")
    (held,) = a.claim("q")
    b.begin_with_snapshot(level)
    sent = a.send("q", tenant="quiet")
    b.ack("q", held)
    b.commit()
    assert delivered(a, then) == sent


def test_a_publisher_that_took_the_last_tenant_permit_rolls_back(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    behind_a_backlog(a)
    a.send("q", tenant="quiet")
    a.ack("q", *a.claim("q"))
    b.begin()
    b.send("q", tenant="quiet")
    sent = a.send("q", tenant="quiet")
    a.maintain()
    assert a.claim("q") == []
    b.rollback()
    assert [c.id for c in a.claim("q")] == sent


def test_a_consumer_that_keeps_its_transaction_open_hides_no_more_than_it_asked_for(spec18: Spec) -> None:
    a, b, c = spec18.sessions(3)
    queue(a)
    for n in range(5):
        a.send("q", tenant=f"tenant {n}")
    b.begin()
    (taken,) = b.claim("q", 1)
    others = [x.id for x in c.claim("q", 10)]
    assert len(others) == 4
    b.rollback()
    assert [x.id for x in c.claim("q", 10)] == [taken.id]


def test_two_consumers_that_open_the_same_line(spec18: Spec) -> None:
    a, b, c = spec18.sessions(3)
    queue(a)
    a.send("q", tenant="one")
    a.send("q", tenant="one")
    b.begin()
    assert len(b.claim("q")) == 1
    assert c.start("consume_messages_batch", "q").passes() == []
    b.rollback()
    assert len(c.claim("q")) == 1
    assert spec18.look("select count(*) from penstock.active") == [(1,)]


def test_a_cap_that_is_raised_reaches_every_line(spec18: Spec) -> None:
    a = spec18.session()
    queue(a)
    tenants = [f"tenant {n}" for n in range(BACKLOG)]
    for _ in range(3):
        a.rows("send_messages", "q", ["1"] * BACKLOG, tenants=tenants)
    assert len(a.claim("q", 1000)) == BACKLOG
    a.value("alter_queue", "q", tenant_max_active=2)
    assert len(a.claim("q", 1000)) == BACKLOG
    a.value("alter_queue", "q", tenant_max_active=0)
    assert len(a.claim("q", 1000)) == BACKLOG
    assert spec18.look("select * from penstock.line_checks") == []


def test_full_lines_leave_no_check_behind_once_no_session_is_at_work(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    held = behind_a_backlog(a)
    b.begin()
    b.send("q", tenant="other")
    for _ in range(50):
        a.send("q", tenant="busy")
    a.maintain()
    # While the other publisher is at work a check of the line is kept: one of each part of a pass.
    kept = spec18.look("select tenant from penstock.line_checks where seen_full")
    assert kept in ([("busy",)], [("busy",)] * 2)
    b.rollback()
    a.maintain()
    assert spec18.look("select * from penstock.line_checks") == []
    a.ack("q", *held)
    assert len(a.claim("q")) == 1


@pytest.fixture
def hurried(spec18: Spec) -> Iterator[None]:
    """The engine has time for one look at each kind of check: a very slow machine."""
    ((definition,),) = spec18.watcher.execute(DEFINITION, ("_check_all_lines",)).fetchall()
    rewrite(spec18.watcher, "_check_all_lines", "clock_timestamp() > until", "true")
    yield
    spec18.watcher.execute(definition)


@pytest.mark.usefixtures("hurried")
def test_one_behind_thousands_that_cannot_be_let_in(spec18: Spec) -> None:
    """Another publisher is at work, so the checks of full lines stay. Others are reached all the same."""
    a, b, c = spec18.sessions(3)
    queue(a)
    # The queue is younger than many messages of others.
    a.value("create_queue", "other")
    a.rows("send_messages", "other", ["0"] * 20_000)
    tenants = [f"tenant {n}" for n in range(3000)]
    a.rows("send_messages", "q", ["1"] * 3000, tenants=tenants)
    assert len(a.claim("q", 3000, vt_seconds=3600)) == 3000
    a.send("q", tenant="quiet")
    held = a.claim("q")
    b.begin()
    b.send("q", tenant="other")
    a.rows("send_messages", "q", ["2"] * 3000, tenants=tenants)
    a.begin()
    c.begin()
    a.ack("q", *held)
    sent = c.send("q", tenant="quiet")
    a.commit()
    c.commit()
    a.rows("send_messages", "other", ["0"] * 20_000)
    # A call examines at least 1,000 full lines, beginning at a random one. So it comes to the last of 3,001
    # lines in one call of three.
    calls = 0
    while not any(row[0] == "admitted" for row in a.rows("maintain")):
        calls += 1
        assert calls < 50
    assert [x.id for x in a.claim("q")] == sent
    b.rollback()


def test_maintain_says_where_lines_of_new_tenants_are_left(spec18: Spec) -> None:
    (a,) = spec18.sessions(1)
    queue(a)
    a.rows("send_messages", "q", ["1"] * 5000, tenants=[f"tenant {n}" for n in range(5000)])
    calls = 1
    while any(row[0] == "unfinished" for row in a.rows("maintain")):
        calls += 1
    assert 3 <= calls <= 6
    assert spec18.look("select count(*) from penstock.ready") == [(5000,)]


def test_explain_delivery_tells_what_happens_next(spec18: Spec) -> None:
    """Whatever it says of a waiting message is what the next maintain() does with it."""
    a, b = spec18.sessions(2)
    behind_a_backlog(a, cap=2)
    b.begin("repeatable read")
    ids = b.send("q", 3, tenant="quiet")
    b.commit()
    told = [a.value("explain_delivery", "q", message) for message in ids]
    next_in = 'waiting: tenant "quiet" has 0 of tenant_max_active 2 ready or active: maintain(), or a consume'
    assert [text.startswith(next_in) for text in told] == [True, True, False]
    assert told[2].endswith("behind 2 others of its tenant")
    a.maintain()
    states = spec18.look("select (penstock.get_message('q', m)).state from unnest(%s::bigint[]) m", ids)
    assert states == [("ready",), ("ready",), ("waiting",)]
    assert a.value("explain_delivery", "q", ids[2]) == (
        'waiting: tenant "quiet" has 2 of tenant_max_active 2 ready or active; next in line of its tenant'
    )


def test_the_most_urgent_comes_first_also_among_tenants_that_are_new(spec18: Spec) -> None:
    a = spec18.session()
    queue(a)
    for priority in (3, 2, 1, 0):
        a.send("q", tenant=f"of priority {priority}", priority=priority)
    order = [
        spec18.look("select priority from penstock.active where id = %s", a.claim("q", 1)[0].id)
        for _ in range(4)
    ]
    assert order == [[(0,)], [(1,)], [(2,)], [(3,)]]


# sessions that keep their transactions open


def test_a_claim_of_many_new_tenants_that_stays_open_starves_no_other_line(spec18: Spec) -> None:
    a, b, c = spec18.sessions(3)
    queue(a)
    a.send("q", tenant="known")
    a.ack("q", *a.claim("q"))
    a.rows("send_messages", "q", ["1"] * 1500, tenants=[f"tenant {n}" for n in range(1500)])
    b.begin()
    assert len(b.claim("q", 1500)) == 1500
    c.begin("repeatable read")
    sent = c.send("q", tenant="known")
    c.commit()
    assert [x.id for x in a.claim("q")] == sent
    for _ in range(3):
        a.maintain()
        assert a.claim("q") == []
    ((number,),) = spec18.look("select count(*) from penstock.line_checks")
    assert number <= 1501
    b.rollback()


def test_a_claim_of_one_new_tenant_that_stays_open_holds_up_no_other(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    queue(a)
    a.send("q", tenant="first")
    b.begin()
    assert len(b.claim("q")) == 1
    for n in range(600):
        a.send("q", tenant=f"tenant {n}")
    got: list[Claim] = []
    while claimed := a.claim("q", 100):
        got += claimed
    assert len(got) == 600
    b.rollback()


def test_a_claim_of_one_message_that_stays_open_hides_one_message(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    queue(a, cap=50)
    ids = a.send("q", 50, tenant="new")
    a.send("q", tenant="known")
    assert len(a.claim("q", 1)) == 1
    a.maintain()
    b.begin()
    assert len(b.claim("q", 1)) == 1
    assert len(a.claim("q", 100)) == len(ids) - 1
    b.rollback()


@pytest.mark.parametrize("role", ["publisher", "settler"])
def test_a_message_is_not_taken_along_into_a_transaction_that_stays_open(spec18: Spec, role: str) -> None:
    a, b, c = spec18.sessions(3)
    queue(a, cap=5)
    a.send("q", tenant="known")
    held = a.claim("q")
    c.begin("repeatable read")
    sent = c.send("q", tenant="known")
    c.commit()
    b.begin()
    if role == "publisher":
        b.send("q", tenant="known")
    else:
        b.ack("q", *held)
    assert [x.id for x in a.claim("q")] == sent
    b.rollback()


def test_a_first_cap_waits_for_open_claims_and_holds_up_no_session(spec18: Spec) -> None:
    a, b, c = spec18.sessions(3)
    a.value("create_queue", "q", max_delivery_attempts=0)
    a.send("q", 5, tenant="acme")
    c.begin()
    (held, *_) = c.claim("q", 1)
    altering = b.start("alter_queue", "q", tenant_max_active=1)
    for _ in range(20):
        assert len(a.start("send_messages", "q", "{1}", tenant="other").passes()) == 1
    assert c.value("nack_message", "q", held.id, held.token) is True
    c.commit()
    altering.rows()
    assert len({x.id for x in a.claim("q", 100)}) == 2


# order


def test_priorities_hold_where_a_line_has_several_checks(spec18: Spec) -> None:
    a = spec18.session()
    queue(a)
    a.send("q", tenant="low", priority=3)
    a.maintain()
    for tenant, priority in (("x", 0), ("x", 0), ("y", 1)):
        a.send("q", tenant=tenant, priority=priority)
    claimed = [a.claim("q", 1)[0].id for _ in range(3)]
    look = "select tenant from penstock.active where id = %s"
    assert [spec18.look(look, message) for message in claimed] == [[("x",)], [("y",)], [("low",)]]


def test_an_urgent_message_goes_before_one_that_waits_although_a_tenant_permit_is_free(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    queue(a)
    a.send("q", tenant="acme")
    a.ack("q", *a.claim("q"))
    b.begin("repeatable read")
    b.send("q", tenant="acme", priority=3)
    b.commit()
    urgent = a.send("q", tenant="acme", priority=0)
    assert [x.id for x in a.claim("q", 1)] == urgent


def test_the_oldest_is_first_also_after_the_cap_was_taken_away(spec18: Spec) -> None:
    a = spec18.session()
    queue(a)
    ids = a.send("q", 1500, tenant="acme")
    a.value("alter_queue", "q", tenant_max_active=0)
    ids += a.send("q", tenant="acme")
    got: list[int] = []
    while claimed := a.claim("q", 100):
        got += [x.id for x in claimed]
    assert got == ids
