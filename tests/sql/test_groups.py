"""Groups: the callback is sent when all members are done, once, with what they came to."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from .bad_input import Bad, expect
from .conftest import Clock
from .engine import Engine, Row

Sql = psycopg.Connection[Any]


@pytest.fixture
def queues(engine: Engine) -> Engine:
    engine.value("declare_queue", "q")
    engine.value("declare_queue", "then")
    return engine


def start(engine: Engine, total: int, **options: Any) -> tuple[int, list[int]]:
    """A group and its members, all claimed by "w"."""
    group = engine.value("create_group", total, "then", {"n": total}, {"task": "then"}, **options)
    engine.send_many("q", list(range(total)))
    return group, [message.message_id for message in engine.take_many("q", total, "w", vt_seconds=600)]


def done(engine: Engine, group: int, ids: list[int], positions: list[int], results: Any = None) -> None:
    acked = engine.values("ack_tasks", "q", ids, "w", results, [group] * len(ids), positions)
    assert len(acked) == len(ids)


def finish(engine: Engine, *groups: int) -> list[int]:
    return engine.values("finish_groups", *([list(groups)] if groups else []))


def callbacks(engine: Engine) -> list[Row]:
    return engine.take_many("then", 100)


def test_the_callback_comes_when_all_are_done(queues: Engine) -> None:
    group, ids = start(queues, 3, priority=0, tenant="acme", ttl_seconds=60)
    done(queues, group, ids[:2], [0, 1])
    assert finish(queues, group) == []
    (listed,) = queues.rows("list_groups")
    assert (listed.id, listed.total, listed.done_count) == (group, 3, 2)
    assert (listed.callback_queue, listed.callback_headers) == ("then", {"task": "then"})
    done(queues, group, ids[2:], [2])
    assert callbacks(queues) == []
    assert finish(queues, group) == [group]
    (callback,) = callbacks(queues)
    assert (callback.payload, callback.headers) == ({"n": 3}, {"task": "then"})
    assert (callback.priority, callback.tenant) == (0, "acme")
    details = queues.message("then", callback.message_id)
    assert (details.expires_at - details.published_at).total_seconds() == 60
    assert (queues.count("groups"), queues.count("group_results")) == (0, 0)
    assert finish(queues, group) == []


def test_results_come_in_the_order_of_positions(queues: Engine) -> None:
    group, ids = start(queues, 4, with_results=True)
    done(queues, group, ids[:2], [3, 1], [{"of": 3}, None])
    done(queues, group, ids[2:], [0, 2], [{"of": 0}, {"of": 2}])
    assert finish(queues) == [group]
    (callback,) = callbacks(queues)
    assert callback.payload == {"n": 4, "results": [{"of": 0}, None, {"of": 2}, {"of": 3}]}


def test_a_callback_may_have_any_payload(queues: Engine, sql: Sql) -> None:
    for payload in ("null", "5", '"text"', "[1, 2]"):
        (group,) = sql.execute("select penstock.create_group(1, 'then', %s, null)", (payload,)).fetchall()[0]
        queues.send("q")
        done(queues, group, [queues.take("q", "w").message_id], [0])
    assert len(finish(queues)) == 4
    assert [c.payload for c in callbacks(queues)] == [None, 5, "text", [1, 2]]


@pytest.mark.parametrize("total", [1, 2, 15, 16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("missing", ["first", "middle", "last"])
def test_one_missing_member_is_noticed(queues: Engine, total: int, missing: str) -> None:
    """Whichever it is, among those that are looked for or not."""
    group, ids = start(queues, total)
    late = {"first": 0, "middle": total * 3 // 7, "last": total - 1}[missing]
    others = [position for position in range(total) if position != late]
    if others:
        done(queues, group, [ids[position] for position in others], others)
    assert finish(queues, group) == []
    done(queues, group, [ids[late]], [late])
    assert finish(queues, group) == [group]


def test_any_one_missing_member_of_a_group_is_noticed(queues: Engine, sql: Sql) -> None:
    total = 70
    group, ids = start(queues, total)
    done(queues, group, ids, list(range(total)))
    for position in range(total):
        with sql.transaction(force_rollback=True):
            sql.execute("delete from penstock.group_results where position = %s", (position,))
            assert finish(queues) == []
    assert finish(queues) == [group]


def test_members_may_be_of_several_queues_and_groups(queues: Engine) -> None:
    queues.value("declare_queue", "other")
    one = queues.value("create_group", 2, "then", {"of": "one"}, None)
    two = queues.value("create_group", 1, "then", {"of": "two"}, None)
    queues.send_many("q", [1, 2, 3])
    ids = [message.message_id for message in queues.take_many("q", 3, "w")]
    assert len(queues.values("ack_tasks", "q", ids, "w", None, [one, None, two], [0, None, 0])) == 3
    queues.send("other")
    member = queues.take("other", "w").message_id
    assert finish(queues, one, two) == [two]
    queues.values("ack_tasks", "other", [member], "w", None, [one], [1])
    assert finish(queues, one, two) == [one]
    assert [callback.payload["of"] for callback in callbacks(queues)] == ["two", "one"]


def test_only_those_given_are_finished(queues: Engine) -> None:
    groups = []
    for _ in range(3):
        group, ids = start(queues, 1)
        done(queues, group, ids, [0])
        groups.append(group)
    assert finish(queues, groups[1], 999) == [groups[1]]
    assert finish(queues, *groups[:1]) == groups[:1]
    assert queues.values("finish_groups", []) == []
    assert finish(queues) == groups[2:]


def test_a_member_counts_once(queues: Engine) -> None:
    """Not twice at one position; not where there is no such position, or no such group."""
    group, ids = start(queues, 2)
    queues.send_many("q", [1, 2, 3, 4])
    extra = [message.message_id for message in queues.take_many("q", 4, "w")]
    done(queues, group, [ids[0], *extra[:3]], [0, 0, 2, -1])
    queues.values("ack_tasks", "q", extra[3:], "w", None, [999], [0])
    assert queues.query("select position, message_id from penstock.group_results") == [(0, ids[0])]
    assert finish(queues) == []
    done(queues, group, ids[1:], [1])
    assert finish(queues) == [group]


def test_a_callback_that_cannot_be_sent_holds_back_no_other(queues: Engine, sql: Sql) -> None:
    warnings: list[str] = []
    sql.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))
    queues.value("declare_queue", "gone")
    bad = queues.value("create_group", 1, "gone", {}, None)
    queues.send("q")
    done(queues, bad, [queues.take("q", "w").message_id], [0])
    good, ids = start(queues, 1)
    done(queues, good, ids, [0])
    queues.value("delete_queue", "gone")
    assert finish(queues) == [good]
    assert [f"group {bad} cannot" in text and '"gone"' in text for text in warnings] == [True]
    assert [row.id for row in queues.rows("list_groups")] == [bad]
    queues.value("declare_queue", "gone")
    assert finish(queues) == [bad]
    assert queues.take("gone").payload == {}


def test_results_that_are_too_large_for_the_queue(queues: Engine, sql: Sql) -> None:
    warnings: list[str] = []
    sql.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))
    queues.value("alter_queue", "then", max_payload_bytes=1000)
    group, ids = start(queues, 2, with_results=True)
    done(queues, group, ids, [0, 1], [{"of": "x" * 600}, {"of": "y" * 600}])
    assert finish(queues) == []
    assert "over the limit" in warnings[0]
    queues.value("alter_queue", "then", max_payload_bytes=2000)
    assert finish(queues) == [group]


def test_a_deleted_group_sends_nothing(queues: Engine, clock: Clock) -> None:
    group, ids = start(queues, 2)
    done(queues, group, ids[:1], [0])
    assert queues.value("delete_group", group) is True
    assert queues.value("delete_group", group) is False
    done(queues, group, ids[1:], [1])
    assert (queues.count("groups"), queues.count("group_results")) == (0, 0)
    assert finish(queues) == callbacks(queues) == []


def test_maintain_finishes_what_a_killed_worker_left(queues: Engine, clock: Clock) -> None:
    queues.maintain()
    group, ids = start(queues, 2)
    done(queues, group, ids[:1], [0])
    clock.advance(61)
    assert "groups finished" not in queues.maintain()
    done(queues, group, ids[1:], [1])
    clock.advance(61)
    assert queues.maintain()["groups finished"] == 1
    assert len(callbacks(queues)) == 1


def test_maintain_removes_results_that_came_too_late(queues: Engine, clock: Clock, sql: Sql) -> None:
    group, ids = start(queues, 2)
    done(queues, group, ids[:1], [0])
    other, others = start(queues, 2)
    done(queues, other, others[:1], [0])
    sql.execute("delete from penstock.groups where id = %s", (group,))
    clock.advance(61)
    assert queues.maintain()["group results removed"] == 1
    assert queues.query("select group_id from penstock.group_results") == [(other,)]


def later(engine: Engine, clock: Clock) -> dict[str, int]:
    """What maintain() does once a minute."""
    clock.advance(61)
    return engine.maintain_all()


def test_maintain_finishes_one_among_many(queues: Engine, clock: Clock) -> None:
    queues.maintain_all()
    query = "select count(penstock.create_group(3, 'then', '{}', '{}')) from generate_series(1, 2500)"
    queues.query(query)
    group, ids = start(queues, 4)
    queues.query(query)
    done(queues, group, ids, [0, 1, 2, 3])
    clock.advance(61)
    finished = sum(queues.maintain().get("groups finished", 0) for _ in range(12))
    assert finished == 1
    assert callbacks(queues) != []


def test_maintain_remembers_which_member_is_missing(queues: Engine, clock: Clock) -> None:
    queues.maintain_all()
    group, ids = start(queues, 6)

    def missing() -> int:
        later(queues, clock)
        ((position,),) = queues.query("select missing from penstock.groups where id = %s", group)
        assert isinstance(position, int)
        return position

    assert missing() == 5
    done(queues, group, [ids[0]], [0])
    assert missing() == 5
    done(queues, group, ids[3:], [3, 4, 5])
    assert missing() == 2
    done(queues, group, [ids[1]], [1])
    assert finish(queues, group) == []
    assert missing() == 2
    done(queues, group, [ids[2]], [2])
    assert later(queues, clock)["groups finished"] == 1
    assert queues.count("groups") == queues.count("group_results") == 0


def test_a_group_that_is_not_complete_in_time_is_deleted(queues: Engine, clock: Clock) -> None:
    """A member that is dead for good would keep it, with all results, for ever."""
    queues.maintain_all()
    brief, ids = start(queues, 3, keep_seconds=3600)
    done(queues, brief, ids[1:], [1, 2])
    usual, others = start(queues, 2)
    done(queues, usual, others[:1], [0])
    clock.advance(3500)
    assert "groups expired" not in later(queues, clock)
    clock.advance(100)
    assert later(queues, clock)["groups expired"] == 1
    assert [row.id for row in queues.rows("list_groups")] == [usual]
    assert queues.query("select distinct group_id from penstock.group_results") == [(usual,)]
    assert callbacks(queues) == []
    clock.advance(30 * 86_400)
    assert later(queues, clock)["groups expired"] == 1
    assert queues.count("groups") == queues.count("group_results") == 0


def test_maintain_finishes_a_group_later_if_its_callback_could_not_be_sent(
    queues: Engine, clock: Clock
) -> None:
    queues.maintain_all()
    group, ids = start(queues, 3)
    done(queues, group, ids, [0, 1, 2])
    queues.value("delete_queue", "then")
    assert "groups finished" not in later(queues, clock)
    assert queues.count("groups") == 1
    queues.queue("then")
    assert later(queues, clock)["groups finished"] == 1


def test_a_group_of_many_members_is_finished_over_several_minutes(queues: Engine, clock: Clock) -> None:
    """A call reads 10,000 results of a group at most."""
    queues.maintain_all()
    group = queues.value("create_group", 25_000, "then", {}, {})
    queues.query(
        """with added as (
            insert into penstock.group_results (group_id, position, message_id)
            select %s, n, n from generate_series(0, 24999) n returning 1
        ) select count(*) from added""",
        group,
    )
    finished = [later(queues, clock).get("groups finished", 0) for _ in range(3)]
    assert finished == [0, 0, 1]


def test_maintain_removes_late_results_before_between_and_after_groups(queues: Engine, clock: Clock) -> None:
    queues.maintain_all()
    groups = [queues.value("create_group", 3, "then", {}, {}) for _ in range(7)]
    queues.query(
        """with added as (
            insert into penstock.group_results (group_id, position, message_id)
            select g, p, p from unnest(%s::bigint[]) g, generate_series(0, 1) p returning 1
        ) select count(*) from added""",
        groups,
    )
    for n in (0, 2, 3, 6):
        queues.query(
            "with gone as (delete from penstock.groups where id = %s returning 1) select from gone", groups[n]
        )
    assert later(queues, clock)["group results removed"] == 8
    kept = queues.query("select distinct group_id from penstock.group_results order by 1")
    assert [each for (each,) in kept] == [groups[n] for n in (1, 4, 5)]


def test_a_group_is_made_with_its_members_or_not_at_all(queues: Engine, sql: Sql) -> None:
    with sql.transaction(force_rollback=True):
        start(queues, 2)
    assert queues.rows("list_groups") == []


NULL: Any = None


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN004", "total", "0").of("create_group", 0, "billing", {}, NULL),
        expect("PN004", "total", "null").of("create_group", NULL, "billing", {}, NULL),
        expect("PN004", "total", "10000001").of("create_group", 10000001, "billing", {}, NULL),
        expect("PN001", "nope").of("create_group", 1, "nope", {}, NULL),
        expect("PN001", "queue").of("create_group", 1, NULL, {}, NULL),
        expect("PN004", "payload", "null").of("create_group", 1, "billing", NULL, NULL),
        expect("PN004", "headers", "[1]").of("create_group", 1, "billing", {}, "[1]"),
        expect("PN004", "priority", "4").of("create_group", 1, "billing", {}, NULL, 4),
        expect("PN004", "priority", "null").of("create_group", 1, "billing", {}, NULL, NULL),
        expect("PN004", "tenant", "256").of("create_group", 1, "billing", {}, NULL, 2, "t" * 256),
        expect("PN004", "tenant", "0").of("create_group", 1, "billing", {}, NULL, 2, ""),
        expect("PN004", "ttl_seconds", "0").of("create_group", 1, "billing", {}, NULL, ttl_seconds=0),
        expect("PN004", "keep_seconds", "0").of("create_group", 1, "billing", {}, NULL, keep_seconds=0),
        expect("PN004", "with_results").of("create_group", 1, "billing", {}, NULL, with_results=NULL),
        expect("PN004", "object", "array").of("create_group", 1, "billing", "[]", NULL, with_results=True),
    ],
)
def test_bad_input_is_refused(house: Engine, bad: Bad) -> None:
    bad.check(house)
