"""Rights per queue, and what only administrators change."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from .engine import Engine

TASK = {"task": "report"}
ODD = 'Odd "role" \' with ü'


class Roles:
    """Roles of a test, and calls in their name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made: list[str] = []
        self._suffix = secrets.token_hex(4)

    def make(self, name: str, *groups: str) -> str:
        """A role that is a member of these."""
        full = f"{name} {self._suffix}"
        self.run(f"create role {quoted(full)}")
        self._made.append(full)
        for group in groups:
            self.run(f"grant {quoted(group)} to {quoted(full)}")
        return full

    def rename(self, role: str) -> str:
        self.run(f"alter role {quoted(role)} rename to {quoted(role + ' renamed')}")
        self._made[self._made.index(role)] = role + " renamed"
        return role + " renamed"

    def drop(self, role: str) -> None:
        self._made.remove(role)
        self.run(f"drop role {quoted(role)}")

    def run(self, statement: str) -> None:
        self._engine.connection.execute(statement.encode())

    @contextmanager
    def acting(self, role: str) -> Iterator[Engine]:
        """Calls as this role."""
        with self._engine.connection.transaction():
            self.run(f"set local role {quoted(role)}")
            yield self._engine
            self.run("reset role")

    def may(self, role: str, function: str, *arguments: Any) -> bool:
        """Whether a call is not refused for a missing right; it is undone."""
        try:
            with self._engine.connection.transaction(force_rollback=True):
                self.run(f"set local role {quoted(role)}")
                self._engine.rows(function, *arguments)
        except psycopg.Error as exc:
            if exc.sqlstate == "PN008":
                return False
            raise
        return True

    def clean(self) -> None:
        for role in reversed(self._made):
            self.drop(role)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture
def roles(engine: Engine) -> Iterator[Roles]:
    roles = Roles(engine)
    yield roles
    roles.clean()


@pytest.fixture
def web(roles: Roles) -> str:
    return roles.make("web", "penstock_publisher")


@pytest.fixture
def worker(roles: Roles) -> str:
    return roles.make("worker", "penstock_consumer")


# Grants


def test_every_queue_is_open_at_first(engine: Engine, roles: Roles, web: str) -> None:
    engine.queue("q")
    assert not engine.settings("q").restricted
    assert engine.rows("list_grants") == []
    assert roles.may(web, "send_message", "q", "1")


def test_the_first_grant_restricts(engine: Engine, roles: Roles, web: str, worker: str) -> None:
    engine.queue("q")
    other = roles.make("other", "penstock_publisher")
    assert engine.value("grant_queue", web, "q", "publish") is True
    assert engine.value("grant_queue", web, "q", "publish") is False
    assert engine.settings("q").restricted
    assert roles.may(web, "send_message", "q", "1")
    assert not roles.may(other, "send_message", "q", "1")
    assert not roles.may(worker, "consume_message", "q")
    assert engine.value("grant_queue", worker, "q", "consume") is True
    assert roles.may(worker, "consume_message", "q")
    assert [vars(row) for row in engine.rows("list_grants", "q")] == [
        {"queue_name": "q", "role_name": web, "queue_right": "publish", "role_exists": True},
        {"queue_name": "q", "role_name": worker, "queue_right": "consume", "role_exists": True},
    ]


def test_without_grants_it_stays_restricted_until_it_is_opened(
    engine: Engine, roles: Roles, web: str
) -> None:
    engine.queue("q")
    engine.value("grant_queue", web, "q", "publish")
    assert engine.value("revoke_queue", web, "q", "publish") is True
    assert engine.value("revoke_queue", web, "q", "publish") is False
    assert engine.rows("list_grants") == []
    assert engine.settings("q").restricted
    assert not roles.may(web, "send_message", "q", "1")
    assert engine.value("open_queue", "q") is True
    assert engine.value("open_queue", "q") is False
    assert roles.may(web, "send_message", "q", "1")


def test_the_error_names_role_queue_and_grant(engine: Engine, roles: Roles, web: str) -> None:
    engine.queue("it's")
    engine.value("grant_queue", "penstock_admin", "it's", "publish")
    with pytest.raises(psycopg.Error) as caught, roles.acting(web):
        engine.send("it's")
    assert caught.value.diag.message_primary == f'role "{web}" may not publish to queue "it\'s"'
    assert f"penstock.grant_queue('{web}', 'it''s', 'publish')" in str(caught.value.diag.message_hint)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("no such role", "q", "publish"), "no such role"),
        (("penstock_viewer", "q", "own"), "own"),
        (("penstock_viewer", "q", None), "null"),
        (("penstock_viewer", "q", ""), '""'),
        ((None, "q", "view"), "null"),
        (("", "q", "view"), "role_name"),
        (("public", "q", "view"), "public"),
    ],
)
def test_a_grant_that_cannot_be(engine: Engine, arguments: tuple[Any, ...], named: str) -> None:
    engine.queue("q")
    with engine.refused("PN004", named):
        engine.value("grant_queue", *arguments)


def test_of_a_queue_that_is_not_there(engine: Engine) -> None:
    for call in (
        ("grant_queue", "penstock_viewer", "none", "view"),
        ("revoke_queue", "penstock_viewer", "none", "view"),
        ("open_queue", "none"),
        ("list_grants", "none"),
    ):
        with engine.refused("PN001", "none"):
            engine.rows(*call)


def test_grants_are_no_settings(engine: Engine, web: str) -> None:
    """They stay when the queue is created again or altered, and go with it."""
    engine.queue("q", max_active=3)
    engine.value("grant_queue", web, "q", "publish")
    engine.queue("q", max_active=3)
    engine.value("alter_queue", "q", max_active=4)
    engine.value("pause_queue", "q")
    assert [row.role_name for row in engine.rows("list_grants")] == [web]
    engine.value("delete_queue", "q")
    engine.queue("q")
    assert engine.rows("list_grants") == []
    assert not engine.settings("q").restricted


# Identity of the caller


def test_members_have_the_rights_of_their_group(engine: Engine, roles: Roles) -> None:
    engine.queue("q")
    team = roles.make(ODD)
    member = roles.make("member", team, "penstock_publisher")
    heir = roles.make("heir", member)
    engine.value("grant_queue", team, "q", "publish")
    assert roles.may(member, "send_message", "q", "1")
    assert roles.may(heir, "send_message", "q", "1")
    engine.value("revoke_queue", team, "q", "publish")
    assert not roles.may(member, "send_message", "q", "1")


def test_a_member_that_does_not_inherit_has_to_set_the_role(engine: Engine, roles: Roles) -> None:
    engine.queue("q")
    team = roles.make("team", "penstock_publisher")
    member = roles.make("member", "penstock_publisher")
    roles.run(f"alter role {quoted(member)} noinherit")
    roles.run(f"grant {quoted(team)} to {quoted(member)}")
    engine.value("grant_queue", team, "q", "publish")
    with pytest.raises(psycopg.Error) as caught, roles.acting(member):
        engine.send("q")
    # Before PostgreSQL 16 it has inherited nothing at all, and may not even call.
    assert caught.value.sqlstate in ("PN008", "42501")
    with roles.acting(team):
        engine.send("q")


def test_a_role_that_was_renamed_or_dropped(engine: Engine, roles: Roles, web: str, worker: str) -> None:
    """Grants go by name: a grant for a missing role has no effect, and other roles keep theirs."""
    engine.queue("q")
    engine.value("grant_queue", web, "q", "publish")
    engine.value("grant_queue", worker, "q", "consume")
    gone = roles.make("gone")
    for right in ("publish", "consume", "view"):
        engine.value("grant_queue", gone, "q", right)
    roles.drop(gone)
    assert {row.role_name for row in engine.rows("list_grants") if not row.role_exists} == {gone}
    assert roles.may(web, "send_message", "q", "1")
    assert roles.may(worker, "consume_message", "q")
    renamed = roles.rename(web)
    assert not roles.may(renamed, "send_message", "q", "1")
    engine.value("grant_queue", renamed, "q", "publish")
    assert roles.may(renamed, "send_message", "q", "1")
    for right in ("publish", "consume", "view"):
        assert engine.value("revoke_queue", gone, "q", right) is True


def test_a_dump_is_restored_where_the_role_is_missing(engine: Engine, roles: Roles) -> None:
    engine.queue("q")
    gone = roles.make("gone")
    engine.value("grant_queue", gone, "q", "publish")
    roles.drop(gone)
    ((row,),) = engine.query("select q::text from penstock.queues q")
    ((again,),) = engine.query("select (%s::penstock.queues)::text", row)
    assert again == row


def test_a_definer_function_of_a_user_counts_as_the_role_of_the_session(
    engine: Engine, roles: Roles, web: str
) -> None:
    engine.queue("q")
    engine.value("grant_queue", "penstock_viewer", "q", "view")
    roles.run("""
        create function public.as_owner() returns bigint language sql security definer
        as $$ select penstock.send_message('q', '1') $$
    """)
    try:
        with pytest.raises(psycopg.Error) as caught, roles.acting(web):
            engine.query("select public.as_owner()")
        assert caught.value.sqlstate == "PN008"
        engine.value("grant_queue", web, "q", "publish")
        with roles.acting(web):
            assert engine.query("select public.as_owner()")
    finally:
        roles.run("drop function public.as_owner()")


def test_the_role_cannot_be_pretended(engine: Engine, roles: Roles, web: str) -> None:
    engine.queue("q")
    engine.value("grant_queue", "penstock_admin", "q", "publish")
    roles.run(f"set session authorization {quoted(web)}")
    try:
        for pretence in ("set role penstock_admin", "select set_config('role', 'penstock_admin', false)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                roles.run(pretence)
        with pytest.raises(psycopg.Error, match="may not publish"):
            engine.send("q")
    finally:
        roles.run("reset session authorization")


# Topics


def test_publishing_to_a_topic_needs_the_right_in_each_of_its_queues(
    engine: Engine, roles: Roles, web: str
) -> None:
    engine.topic("t", "open", "shut", "shut too")
    engine.value("grant_queue", web, "shut", "publish")
    assert roles.may(web, "publish_message", "t", "1")
    engine.value("grant_queue", "penstock_admin", "shut too", "publish")
    with pytest.raises(psycopg.Error, match='may not publish to queue "shut too"'), roles.acting(web):
        engine.publish("t")
    engine.value("grant_queue", web, "shut too", "publish")
    with roles.acting(web):
        message_id = engine.publish("t")
    assert [engine.state(queue, message_id) for queue in ("open", "shut", "shut too")] == ["ready"] * 3
    engine.value("create_topic", "empty")
    with roles.acting(web):
        engine.publish("empty")


# Settings are an administrator's


def test_declaring_changes_nothing_for_a_publisher(
    engine: Engine, roles: Roles, web: str, worker: str
) -> None:
    engine.value("declare_queue", "q", 5, 100)
    for role in (web, worker):
        with roles.acting(role):
            queue_id = engine.value("declare_queue", "q", 1, 200)
            assert queue_id == engine.value("declare_queue", "q")
            assert engine.value("queue_difference", "q") is None
            assert engine.value("queue_difference", "q", 5, 50) is None
            difference = engine.value("queue_difference", "q", 1, 200)
        assert difference == "max_active is 5, not 1; retain_completed_seconds is 100, not 200"
        assert (engine.settings("q").max_active, engine.settings("q").retain_completed_seconds) == (5, 100)
    admin = roles.make("deployer", "penstock_admin")
    with roles.acting(admin):
        engine.value("declare_queue", "q", 1, 200)
    with roles.acting(web):
        assert engine.value("queue_difference", "q", 1, 200) is None
    assert (engine.settings("q").max_active, engine.settings("q").retain_completed_seconds) == (1, 200)


def test_declaring_creates_for_a_publisher(engine: Engine, roles: Roles, web: str) -> None:
    with roles.acting(web):
        engine.value("declare_queue", "new", 3)
        engine.send("new")
    assert engine.settings("new").max_active == 3
    assert not engine.settings("new").restricted


# Schedules


def put(engine: Engine, queue: str, headers: dict[str, Any] | None = None, every: int = 60) -> Any:
    definition = {"every": every}
    values = (
        "s",
        queue,
        {"n": every},
        headers or TASK,
        2,
        None,
        None,
        definition,
        "skip",
        "2030-01-01 00:00Z",
    )
    return engine.value("put_schedule", *values)


def test_a_publisher_does_not_redirect_a_schedule(engine: Engine, roles: Roles, web: str) -> None:
    engine.queue("q")
    engine.queue("elsewhere")
    put(engine, "q")
    with roles.acting(web):
        put(engine, "q", every=30)
        put(engine, "q", {"task": "report", "more": 1}, every=30)
    for queue, headers in (("elsewhere", TASK), ("q", {"task": "another"}), ("q", {"more": 1})):
        with engine.refused("PN008", '"s"', '"report"', '"q"'), roles.acting(web):
            put(engine, queue, headers)
    # To a queue that is gone it sends nothing.
    engine.value("delete_queue", "q")
    with roles.acting(web):
        put(engine, "elsewhere")
    engine.queue("q")
    admin = roles.make("deployer", "penstock_admin")
    with roles.acting(admin):
        put(engine, "q", {"task": "another"})
    assert (engine.row("list_schedules").queue_name, engine.row("list_schedules").headers) == (
        "q",
        {"task": "another"},
    )


def test_the_schedule_of_a_restricted_queue(engine: Engine, roles: Roles, web: str) -> None:
    engine.queue("q")
    put(engine, "q")
    other = roles.make("other", "penstock_publisher")
    engine.value("grant_queue", web, "q", "publish")
    advance: tuple[Any, ...] = ("advance_schedule", "s", "2030-01-01 00:00Z", "2999-01-01 00:00Z", [])
    with roles.acting(other):
        assert engine.rows("list_schedules") == []
    with engine.refused("PN008", '"q"'), roles.acting(other):
        engine.rows(*advance)
    with engine.refused("PN008", '"q"'), roles.acting(other):
        put(engine, "q", every=1)
    # The task is not named to a role that may not see the schedule.
    engine.queue("elsewhere")
    with pytest.raises(psycopg.Error) as caught, roles.acting(other):
        put(engine, "elsewhere")
    assert caught.value.sqlstate == "PN008"
    assert caught.value.diag.message_primary == (
        'schedule "s" sends to queue "q": only an administrator may have it send something else'
    )
    with roles.acting(web):
        assert [row.name for row in engine.rows("list_schedules")] == ["s"]
        ticks = ["2030-01-01 00:00Z"]
        assert len(engine.values("advance_schedule", "s", ticks[0], "2030-01-01 00:01Z", ticks)) == 1


# Groups


def test_a_group_is_finished_by_a_consumer_that_may_not_publish(
    engine: Engine, roles: Roles, web: str, worker: str
) -> None:
    """The right to send the callback was looked at when the group was made."""
    engine.queue("members")
    engine.queue("after")
    engine.value("grant_queue", web, "after", "publish")
    with roles.acting(web):
        group = engine.value("create_group", 1, "after", {"n": 7}, {"task": "then"})
        message_id = engine.send("members", headers={"group": group, "position": 0})
    with roles.acting(worker):
        engine.take("members", "token")
        assert engine.values("ack_tasks", "members", [message_id], "token", None, [group], [0]) == [
            message_id
        ]
        assert engine.values("finish_groups", [group]) == [group]
    ((state, payload),) = [
        (r.state, engine.message("after", r.message_id).payload)
        for r in engine.rows("list_messages", "after")
    ]
    assert (state, payload) == ("ready", {"n": 7})


# Results


@pytest.mark.parametrize("restricted", [False, True])
def test_a_publisher_reads_results_and_nothing_else(
    engine: Engine, roles: Roles, web: str, restricted: bool
) -> None:
    engine.queue("q")
    if restricted:
        engine.value("grant_queue", web, "q", "publish")
    with roles.acting(web):
        large, dead, unknown = engine.send("q", "secret" * 1000, headers=TASK), engine.send("q", "secret"), 99
        assert engine.row("get_result", "q", large).state == "ready"
    engine.ack(engine.take("q"), result=psycopg.types.json.Jsonb({"sum": 3}))
    engine.reject(engine.take("q"), error="broken")
    with roles.acting(web):
        found = engine.row("get_result", "q", large)
        failed = engine.row("get_result", "q", dead)
        assert engine.rows("get_result", "q", unknown) == []
    assert (found.message_id, found.queue_name, found.state, found.result) == (large, "q", "done", {"sum": 3})
    assert (failed.state, failed.reason, failed.last_error) == ("dead", "failed", "broken")
    assert [entry["error"] for entry in failed.errors] == ["broken"]
    assert "secret" not in str(vars(found) | vars(failed))
    with pytest.raises(psycopg.errors.InsufficientPrivilege), roles.acting(web):
        engine.message("q", large)


# Workers


def test_a_worker_of_several_queues_shows_those_that_may_be_counted(
    engine: Engine, roles: Roles, web: str
) -> None:
    viewer = roles.make("viewer", "penstock_viewer")
    engine.queue("open")
    engine.queue("shut")
    running = [{"task": "a", "queue": "open"}, {"task": "b", "queue": "shut"}]
    engine.value("register_worker", "both", "h", 1, "1", ["open", "shut"], ["a", "b"], 1)
    engine.value("beat_worker", "both", 2, psycopg.types.json.Jsonb(running), False)
    engine.value("register_worker", "one", "h", 2, "1", ["shut"], ["b"], 1)
    engine.value("register_worker", "none", "h", 3, "1", [], [], 1)
    with roles.acting(viewer):
        assert {row.pid: row.queues for row in engine.rows("list_workers")} == {
            1: ["open", "shut"],
            2: ["shut"],
            3: [],
        }
    engine.value("grant_queue", web, "shut", "publish")
    with roles.acting(viewer):
        both, none = engine.rows("list_workers")
    assert (both.queues, both.tasks, both.running) == (["open"], [], running[:1])
    assert (none.pid, none.queues) == (3, [])


@pytest.mark.parametrize("maintain", ["analyze", "reindex table"])
def test_an_administrator_that_maintains_a_table_lends_no_right_to_its_owner(
    engine: Engine, roles: Roles, maintain: str
) -> None:
    """Its session runs functions of the indexes as the owner of the table, as autovacuum does."""
    engine.queue("shut")
    trusted = roles.make("trusted")
    roles.run(f"select penstock.grant_queue('{trusted}', 'shut', 'consume')")
    engine.send("shut", "secret")
    other = quoted(roles.make("other", "penstock_publisher", "penstock_consumer", "penstock_viewer"))
    roles.run(f"create schema loot authorization {other}")
    try:
        roles.run(f"set role {other}")
        roles.run("create table loot.found (what text)")
        roles.run("""
            create function loot.look() returns void language plpgsql as $$
            begin
                if session_user = current_user then
                    return;
                end if;
                insert into loot.found select m.payload::text from penstock.consume_message('shut') m;
                insert into loot.found select 'declared' from penstock.declare_queue('shut', max_active => 1);
            exception when sqlstate 'PN008' then
                insert into loot.found values ('refused');
            end $$
        """)
        roles.run("""
            create function loot.index(n int) returns int language plpgsql immutable as $$
            begin perform loot.look(); return n; end $$
        """)
        roles.run("create table loot.bait (n int)")
        roles.run("create index on loot.bait (loot.index(n))")
        roles.run("insert into loot.bait values (1)")
        roles.run("reset role")
        roles.run("truncate loot.found")
        roles.run(f"{maintain} loot.bait")
        assert {what for (what,) in engine.query("select what from loot.found")} == {"refused"}
        assert engine.settings("shut").max_active is None
        assert engine.take("shut").payload == "secret"
    finally:
        roles.run("reset role")
        roles.run("drop schema loot cascade")


def test_a_superuser_is_granted_nothing(engine: Engine) -> None:
    engine.queue("q")
    ((superuser,),) = engine.query("select current_user::text")
    with engine.refused("PN004", superuser, "needs no right"):
        engine.value("grant_queue", superuser, "q", "view")
