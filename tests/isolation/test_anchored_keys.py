"""Dedup keys that are anchored: whatever becomes of their rows, a key has one unfinished message."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import Connect
from tests.isolation.invariants import broken
from tests.isolation.rewriting import ANCHORS, CLOSE_GATE, OPEN_GATE, anchoring, pause_before, rewrite
from tests.isolation.session import Isolation, Session, Spec, Step, open_spec

SERIALIZATION_FAILURE = "40001"
UNKNOWN_QUEUE = "PN001"
SECONDS = float(os.environ.get("PENSTOCK_STRESS_SECONDS", "5")) / 2


@pytest.fixture
def own_spec(connect18: Connect) -> Iterator[Spec]:
    """Sessions on a database whose functions the test may change."""
    with open_spec(connect18) as opened:
        yield opened


@pytest.fixture
def anchored(spec: Spec) -> Iterator[Session]:
    """A session with the queue one. Every take anchors its key."""
    session = spec.session()
    session.value("create_queue", "one")
    with anchoring(spec.watcher, always=True):
        yield session


@contextmanager
def plainly(spec: Spec) -> Iterator[None]:
    """No take anchors its key while the block runs."""
    rewrite(spec.watcher, "_take_dedup_key", "anchors boolean := true", "anchors boolean := false")
    yield
    rewrite(spec.watcher, "_take_dedup_key", "anchors boolean := false", "anchors boolean := true")


def use(session: Session, key: str = "k") -> int:
    """A message takes the key and is cancelled."""
    message: int = session.value("send_message", "one", "1", dedup_key=key)
    assert session.value("cancel_message", "one", message)
    return message


def uses(spec: Spec) -> list[tuple[int | None, bool]]:
    """The rows of the key: the message and whether it is a free use, the gate first."""
    return spec.look("select id, freed_at is not null from penstock.dedup where key = 'k' order by use")


def remove_free_keys(session: Session) -> int:
    """What maintain() does with keys that are free for long."""
    ((removed,),) = session.run("select penstock._remove_free_keys('-infinity', 'infinity', 10)")
    return int(removed)


def test_an_anchored_key_that_is_used_again_and_again_has_two_rows(spec: Spec, anchored: Session) -> None:
    for _ in range(5):
        use(anchored)
        assert uses(spec) == [(None, False), (None, True)]
    held = anchored.value("send_message", "one", "1", dedup_key="k")
    assert uses(spec) == [(None, False), (held, False)]


# What becomes of a key after a snapshot, by what the snapshot sees.
SINCE = {
    "unused": ["take", "take, free", "take, free, take", "take, free, remove, take plainly"],
    "free": [
        "take",
        "take, free",
        "take, free, take",
        "remove",
        "remove, take",
        "remove, take plainly",
        "remove, take, free, take",
    ],
    "held": [
        "free",
        "free, take",
        "free, take, free",
        "free, remove",
        "free, remove, take",
        "free, remove, take plainly",
        "free, remove, take plainly, free",
        "free, remove, take, free, take",
    ],
}
STORIES = [(seen, story) for seen, stories in SINCE.items() for story in stories]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize(("seen", "story"), STORIES)
def test_an_old_snapshot_x_an_anchored_key(
    spec: Spec, anchored: Session, isolation: Isolation, seen: str, story: str
) -> None:
    """Whatever has become of the key since the snapshot: never a second message, at worst a failure."""
    holder: int | None = None

    def take() -> int:
        message: int = anchored.value("send_message", "one", "1", dedup_key="k")
        return message

    if seen == "free":
        use(anchored)
    elif seen == "held":
        holder = take()
    b = spec.session()
    b.begin_with_snapshot(isolation)
    for step in story.split(", "):
        if step == "take":
            holder = take()
        elif step == "take plainly":
            with plainly(spec):
                holder = take()
        elif step == "free":
            assert anchored.value("cancel_message", "one", holder)
            holder = None
        else:
            assert remove_free_keys(anchored) == 1
    sent = b.start("send_message", "one", "2", dedup_key="k")
    if sent.error() is None:
        assert holder is None
        b.commit()
        assert spec.states("one") == {sent.value(): "ready"}
    else:
        assert sent.error() == SERIALIZATION_FAILURE
        b.rollback()
        b.begin_with_snapshot(isolation)
        again = b.value("send_message", "one", "2", dedup_key="k")
        b.commit()
        assert again == holder or holder is None
        assert spec.states("one") == {again: "ready"}


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_key_that_is_held_for_long_refuses_an_old_snapshot(
    spec: Spec, anchored: Session, isolation: Isolation
) -> None:
    first = anchored.value("send_message", "one", "1", dedup_key="k")
    b = spec.session()
    b.begin_with_snapshot(isolation)
    assert b.value("send_message", "one", "2", dedup_key="k") == first
    # The session that frees the key does not wait for the publisher that was refused.
    assert anchored.start("cancel_message", "one", first).passes() == [(True,)]
    b.commit()


@pytest.mark.parametrize("story", SINCE["free"] + SINCE["held"])
def test_a_publisher_that_has_seen_the_newest_use_x_what_becomes_of_it(own_spec: Spec, story: str) -> None:
    """The publisher is stopped between its look and its next step."""
    a, b, holder = own_spec.sessions(3)
    a.value("create_queue", "one")
    pause_before(own_spec.watcher, "_take_dedup_key", "newest.id is null")
    with anchoring(own_spec.watcher, always=True):
        if story in SINCE["free"]:  # noqa: SIM108
            last = use(a)
        else:
            last = a.value("send_message", "one", "1", dedup_key="k")
        holder.run(CLOSE_GATE, 0)
        sent = b.waits("send_message", "one", "2", dedup_key="k")
        rewrite(own_spec.watcher, "_take_dedup_key", "public.pause(0)", "true")
        for step in story.split(", "):
            if step == "take":
                last = a.value("send_message", "one", "1", dedup_key="k")
            elif step == "take plainly":
                with plainly(own_spec):
                    last = a.value("send_message", "one", "1", dedup_key="k")
            elif step == "free":
                assert a.value("cancel_message", "one", last)
            else:
                assert remove_free_keys(a) == 1
        holder.run(OPEN_GATE, 0)
        is_held = step.startswith("take")
        assert (sent.value() == last) is is_held
        assert own_spec.states("one") == {sent.value(): "ready"}
    assert broken(own_spec.watcher) == []


@pytest.mark.parametrize("commits", [True, False])
def test_two_takers_of_a_free_use(spec: Spec, anchored: Session, commits: bool) -> None:
    a, b = spec.sessions(2)
    use(anchored)
    a.begin()
    first = a.value("send_message", "one", "1", dedup_key="k")
    second = b.waits("send_message", "one", "2", dedup_key="k")
    a.commit() if commits else a.rollback()
    assert (second.value() == first) is commits
    assert spec.states("one") == {second.value(): "ready"}


@pytest.mark.parametrize("commits", [True, False])
def test_taker_x_removal(spec: Spec, anchored: Session, commits: bool) -> None:
    """The removal waits for no session: it leaves the key that is being taken."""
    a, b = spec.sessions(2)
    use(anchored)
    a.begin()
    first = a.value("send_message", "one", "1", dedup_key="k")
    b.begin()
    assert remove_free_keys(b) == 0
    b.commit()
    a.commit() if commits else a.rollback()
    assert remove_free_keys(b) == (0 if commits else 1)
    assert uses(spec) == ([(None, False), (first, False)] if commits else [])


@pytest.mark.parametrize("commits", [True, False])
def test_removal_x_taker(spec: Spec, anchored: Session, commits: bool) -> None:
    a, b = spec.sessions(2)
    use(anchored)
    a.begin()
    assert remove_free_keys(a) == 1
    second = b.waits("send_message", "one", "2", dedup_key="k")
    a.commit() if commits else a.rollback()
    message = second.value()
    assert uses(spec) == [(None, False), (message, False)]


@pytest.mark.parametrize("ends", ["purge_queue", "delete_queue"])
@pytest.mark.parametrize("commits", [True, False])
def test_the_end_of_all_messages_x_taker(spec: Spec, anchored: Session, ends: str, commits: bool) -> None:
    a, b = spec.sessions(2)
    first = anchored.value("send_message", "one", "1", dedup_key="k")
    use(anchored, "free")
    a.begin()
    a.rows(ends, "one")
    second = b.waits("send_message", "one", "2", dedup_key="k")
    a.commit() if commits else a.rollback()
    if not commits:
        assert second.value() == first
    elif ends == "purge_queue":
        message = second.value()
        assert spec.states("one") == {message: "ready"}
        assert spec.look("select distinct key from penstock.dedup") == [("k",)]
    else:
        assert second.error() == UNKNOWN_QUEUE
        assert spec.look("select * from penstock.dedup") == []


@pytest.mark.parametrize("locked", ["use = 0", "use > 0"])
@pytest.mark.parametrize("ends", ["purge_queue", "delete_queue"])
def test_removal_x_the_end_of_all_messages(spec: Spec, anchored: Session, ends: str, locked: str) -> None:
    """The removal waits for neither row of a key. Else it could hold the one and wait for the other."""
    holder, a, b = spec.sessions(3)
    use(anchored)
    holder.begin()
    holder.run(f"select 1 from penstock.dedup where {locked} for update")
    removal = b.start_statement("select penstock._remove_free_keys('-infinity', 'infinity', 10)")
    assert removal.passes() == [(0,)]
    end = a.waits(ends, "one")
    removal = b.start_statement("select penstock._remove_free_keys('-infinity', 'infinity', 10)")
    assert removal.passes() == [(0,)]
    holder.rollback()
    assert end.error() is None
    assert spec.look("select * from penstock.dedup") == []


def test_no_key_has_two_messages_in_a_crowd(own_spec: Spec) -> None:
    """Sessions of every isolation level take, free and remove the same keys at random."""
    watcher = own_spec.watcher
    rewrite(watcher, "_take_dedup_key", ANCHORS, "message_id % 2 = 0")
    setup = own_spec.session()
    setup.value("create_queue", "one")
    sessions = own_spec.sessions(6)
    levels: list[Isolation] = ["read committed", "repeatable read", "serializable"]
    sent = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        steps: list[Step] = []
        for _ in range(20):
            for session in sessions:
                chosen = random.random()
                if chosen < 0.6:
                    level, key = random.choice(levels), random.choice("ab")
                    text = f"begin isolation level {level}; select 1 from penstock.queues;"
                    text += f" select penstock.send_message('one', '1', dedup_key => '{key}');"
                    text += random.choice(["commit", "commit", "rollback"])
                elif chosen < 0.9:
                    text = "select penstock.cancel_message('one', id) from penstock.ready limit 1"
                else:
                    text = "select penstock._remove_free_keys('-infinity', 'infinity', 10)"
                steps.append(session.start_statement("rollback; " + text))
        errors = {step.error() for step in steps}
        assert errors <= {None, SERIALIZATION_FAILURE}, errors
        twice = own_spec.look("select dedup_key from penstock.ready group by 1 having count(*) > 1")
        assert twice == []
        sent += len(steps)
    assert sent > 100
    for session in sessions:
        session.run("rollback")
    assert broken(watcher) == []
