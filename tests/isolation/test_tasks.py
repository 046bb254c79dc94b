"""Workers that do the same at once: one queue, one callback, one message a tick."""

from typing import Any

import pytest

from tests.isolation.session import Session, Spec

WORKER, LATE, OTHER = "w", "late", "other"
FIRST, SECOND, THIRD = "2030-01-01 00:00Z", "2030-01-01 01:00Z", "2030-01-01 02:00Z"


@pytest.fixture
def setup(spec: Spec) -> Session:
    session = spec.session()
    session.value("declare_queue", "q")
    session.value("declare_queue", "then")
    return session


def start_group(session: Session, total: int = 2) -> tuple[int, list[int]]:
    group = session.value("create_group", total, "then", "{}", None)
    session.send("q", total)
    return group, [claim.id for claim in session.claim("q", total, consumer_token=WORKER)]


def ack(session: Session, group: int, message_id: int, position: int) -> list[Any]:
    return session.rows("ack_tasks", "q", [message_id], WORKER, None, [group], [position])


def callbacks(spec: Spec) -> int:
    return len(spec.states("then"))


# Groups


def test_two_finish_a_group_at_once(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    group, ids = start_group(setup)
    for position, message_id in enumerate(ids):
        ack(setup, group, message_id, position)
    a.begin()
    assert a.rows("finish_groups", [group]) == [(group,)]
    assert b.start("finish_groups", [group]).passes() == []
    assert b.start("finish_groups").passes() == []
    a.commit()
    assert b.rows("finish_groups", [group]) == []
    assert callbacks(spec) == 1


def test_a_session_that_gave_up_leaves_the_group_to_the_next(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    group, ids = start_group(setup, 1)
    ack(setup, group, ids[0], 0)
    a.begin()
    assert a.rows("finish_groups", [group]) == [(group,)]
    a.rollback()
    assert b.rows("finish_groups") == [(group,)]
    assert callbacks(spec) == 1


@pytest.mark.parametrize("first_commits_first", [True, False])
def test_the_last_two_members_end_at_once(spec: Spec, setup: Session, first_commits_first: bool) -> None:
    """Neither waits for or sees the other; the session that checks last, after its commit, sees both."""
    a, b = spec.sessions(2)
    group, ids = start_group(setup)
    for position, session in enumerate((a, b)):
        session.begin()
        assert session.start(
            "ack_tasks", "q", [ids[position]], WORKER, None, [group], [position]
        ).passes() == [(ids[position],)]
    one, other = (a, b) if first_commits_first else (b, a)
    one.commit()
    assert one.rows("finish_groups", [group]) == []
    other.commit()
    sent = [*a.rows("finish_groups", [group]), *b.rows("finish_groups", [group])]
    assert sent == [(group,)]
    assert callbacks(spec) == 1


def test_both_commit_and_then_both_finish(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    group, ids = start_group(setup)
    ack(a, group, ids[0], 0)
    ack(b, group, ids[1], 1)
    a.begin()
    b.begin()
    assert a.rows("finish_groups", [group]) == [(group,)]
    assert b.start("finish_groups", [group]).passes() == []
    a.commit()
    b.commit()
    assert callbacks(spec) == 1


def test_a_look_at_a_group_that_is_not_complete_locks_nothing(spec: Spec, setup: Session) -> None:
    """Else the session with the last member could skip the group, and no session would send."""
    a, b = spec.sessions(2)
    group, ids = start_group(setup)
    ack(a, group, ids[0], 0)
    a.begin()
    assert a.rows("finish_groups", [group]) == []
    ack(b, group, ids[1], 1)
    assert b.start("finish_groups", [group]).passes() == [(group,)]
    a.commit()
    assert callbacks(spec) == 1


def test_members_of_one_group_do_not_wait(spec: Spec, setup: Session) -> None:
    sessions = spec.sessions(4)
    group, ids = start_group(setup, 4)
    for position, session in enumerate(sessions):
        session.begin()
        step = session.start("ack_tasks", "q", [ids[position]], WORKER, None, [group], [position])
        assert step.passes() == [(ids[position],)]
    for session in sessions:
        session.commit()
    assert setup.rows("finish_groups") == [(group,)]


def test_a_result_that_comes_while_its_group_is_deleted(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    group, ids = start_group(setup)
    a.begin()
    ack(a, group, ids[0], 0)
    assert b.value("delete_group", group) is True
    a.commit()
    assert spec.look("select count(*) from penstock.group_results") == [(1,)]
    assert ("group results removed", None, 1) in setup.maintain()
    assert spec.look("select count(*) from penstock.group_results") == [(0,)]


def test_maintain_passes_by_a_queue_that_is_being_deleted(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    setup.maintain()
    group, ids = start_group(setup, 1)
    ack(setup, group, ids[0], 0)
    setup.run("update penstock.upkeep set done_at = '-infinity', after_queue = 0")
    a.begin()
    a.rows("delete_queue", "then")
    assert "groups finished" not in [row[0] for row in b.start("maintain").passes()]
    a.rollback()
    setup.run("update penstock.upkeep set done_at = '-infinity', after_queue = 0")
    assert ("groups finished", None, 1) in b.rows("maintain")
    assert callbacks(spec) == 1


# A lease that was lost


def test_an_ack_of_tasks_that_another_worker_holds_by_now(spec: Spec, setup: Session) -> None:
    """The late ack changes nothing: no result, no word; that of the other does."""
    late, other = spec.sessions(2)
    group = setup.value("create_group", 1, "then", "{}", None)
    setup.send("q")
    (claim,) = late.claim("q", 1, consumer_token=LATE, vt_seconds=0)
    (again,) = other.claim("q", 1, consumer_token=OTHER)
    assert again.id == claim.id
    assert late.rows("ack_tasks", "q", [claim.id], LATE, None, [group], [0]) == []
    assert late.rows("finish_groups") == []
    assert other.rows("ack_tasks", "q", [claim.id], OTHER, None, [group], [0]) == [(claim.id,)]
    assert late.rows("ack_tasks", "q", [claim.id], LATE, None, [group], [0]) == []
    assert other.rows("finish_groups") == [(group,)]
    assert callbacks(spec) == 1


def test_an_ack_that_waits_for_the_session_that_takes_the_lease_back(spec: Spec, setup: Session) -> None:
    late, other = spec.sessions(2)
    setup.send("q")
    (claim,) = late.claim("q", 1, consumer_token=LATE, vt_seconds=0)
    other.begin()
    (again,) = other.claim("q", 1, consumer_token=OTHER)
    step = late.waits("ack_tasks", "q", [claim.id], LATE)
    other.commit()
    assert step.rows() == []
    assert spec.states("q") == {again.id: "active"}


# Schedules


def put(session: Session) -> None:
    arguments = ("nightly", "q", "1", None, 2, None, None, "{}", "skip", FIRST)
    session.value("put_schedule", *arguments)


def advance(session: Session) -> Any:
    return session.start("advance_schedule", "nightly", FIRST, SECOND, [FIRST])


def test_two_advance_a_schedule_at_once(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    put(setup)
    a.begin()
    assert len(advance(a).rows()) == 1
    assert advance(b).passes() == []
    a.commit()
    assert advance(b).passes() == []
    assert len(spec.states("q")) == 1


def test_a_session_that_gave_up_leaves_the_tick_to_the_next(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    put(setup)
    a.begin()
    assert len(advance(a).rows()) == 1
    assert advance(b).passes() == []
    a.rollback()
    assert len(advance(b).rows()) == 1
    assert len(spec.states("q")) == 1


def test_a_pause_waits_for_the_tick_that_is_being_sent(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    put(setup)
    a.begin()
    assert len(advance(a).rows()) == 1
    pause = b.waits("pause_schedule", "nightly")
    a.commit()
    pause.rows()
    assert a.rows("advance_schedule", "nightly", SECOND, THIRD, [SECOND]) == []
    assert len(spec.states("q")) == 1
    assert spec.look("select next_at = %s from penstock.schedules", THIRD) == [(True,)]


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_put_a_schedule_at_once(spec: Spec, setup: Session, first_commits: bool) -> None:
    a, b = spec.sessions(2)
    a.begin()
    put(a)
    arguments = ("nightly", "q", "1", None, 2, None, None, "{}", "skip", SECOND)
    second = b.waits("put_schedule", *arguments)
    if first_commits:
        a.commit()
    else:
        a.rollback()
    expected = FIRST if first_commits else SECOND
    assert spec.look("select %s::timestamptz = %s", second.value(), expected) == [(True,)]
    assert spec.look("select next_at = %s from penstock.schedules", expected) == [(True,)]


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_publisher_does_not_redirect_a_schedule_that_is_just_being_put(
    spec: Spec, setup: Session, first_commits: bool
) -> None:
    a, b = spec.sessions(2)
    setup.value("create_queue", "elsewhere")
    b.run("set role penstock_publisher")
    a.begin()
    put(a)
    arguments = ("nightly", "elsewhere", "1", None, 2, None, None, "{}", "skip", FIRST)
    second = b.waits("put_schedule", *arguments)
    if first_commits:
        a.commit()
        assert second.error() == "PN008"
    else:
        a.rollback()
        second.rows()
    expected = "q" if first_commits else "elsewhere"
    assert spec.look("select queue_name from penstock.schedules") == [(expected,)]


# Queues


@pytest.mark.parametrize("first_commits", [True, False])
@pytest.mark.parametrize("second", [(), (5, 100000)])
def test_two_declare_a_queue_at_once(spec: Spec, second: tuple[int, ...], first_commits: bool) -> None:
    a, b = spec.sessions(2)
    a.begin()
    first = a.value("declare_queue", "new", 3)
    step = b.waits("declare_queue", "new", *second)
    if first_commits:
        a.commit()
        assert step.value() == first
    else:
        a.rollback()
        assert step.value() != first
    settings = spec.look("select max_active, retain_completed_seconds from penstock.list_queues()")
    kept = 3 if first_commits else None
    assert settings == [(second or (kept, 86400))]


def test_two_keep_results_for_longer_at_once(spec: Spec, setup: Session) -> None:
    """The longer counts, whichever session comes last."""
    a, b = spec.sessions(2)
    a.begin()
    a.value("declare_queue", "q", None, 200000)
    step = b.waits("declare_queue", "q", None, 100000)
    a.commit()
    step.value()
    assert spec.look("select retain_completed_seconds from penstock.queues where name = 'q'") == [(200000,)]
