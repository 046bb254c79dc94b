"""Every function x every role: allowed or refused; in a restricted queue, every function x every right."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import kwargs_row

from .engine import Engine
from .rights import CALLS, ROLES, Call, callable_by

FUNCTIONS = """
    select p.oid::regprocedure::text, p.proname, p.prosecdef, coalesce(p.proconfig, '{}')
    from pg_proc p where p.pronamespace = 'penstock'::regnamespace
"""
RIGHTS = ("publish", "consume", "view")
BY_RIGHT = {"publish": "penstock_publisher", "consume": "penstock_consumer", "view": "penstock_viewer"}
DENIED = "PN008"


@pytest.fixture
def login(engine: Engine) -> Iterator[str]:
    """A role without any right."""
    name = f"Stranger's {secrets.token_hex(4)}"
    engine.connection.execute(f'create role "{name}"')
    yield name
    engine.connection.execute("reset role")
    engine.connection.execute(f'drop role "{name}"')


# Every function x every role


def test_the_table_of_roles_is_the_catalog(engine: Engine, login: str) -> None:
    table = callable_by()
    for signature, name, _, _ in engine.query(FUNCTIONS):
        for role in (*ROLES, login):
            ((may,),) = engine.query(f"select has_function_privilege(%s, '{signature}', 'execute')", role)
            assert may == (role in table.get(name, ())), (signature, role)
        ((public,),) = engine.query(f"select has_function_privilege('public', '{signature}', 'execute')")
        assert not public, signature
    public_names = {name for _, name, _, _ in engine.query(FUNCTIONS) if not name.startswith("_")}
    assert public_names == table.keys()


def test_a_call_without_the_role_is_refused(engine: Engine, login: str) -> None:
    """Really called, with nulls: what is not allowed fails before anything is looked at."""
    table = callable_by()
    calls = engine.query("""
        select p.proname, format('penstock.%%I(%%s)', p.proname, (
            select string_agg(
                'null::' || case format_type(t.type, null)
                    when 'anyelement' then 'integer'
                    when 'anyarray' then 'integer[]'
                    else format_type(t.type, null)
                end,
                ', ' order by t.n
            )
            from unnest(p.proargtypes) with ordinality t(type, n)
        ))
        from pg_proc p where p.pronamespace = 'penstock'::regnamespace
    """)
    for role in (*ROLES, login):
        engine.connection.execute("reset role")
        engine.connection.execute(f'set role "{role}"')
        for name, call in calls:
            if role in table.get(name, ()):
                continue
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                engine.connection.execute(f"select from {call}")


@pytest.mark.parametrize("role", [*ROLES, None])
def test_no_role_has_a_right_but_to_call(engine: Engine, login: str, role: str | None) -> None:
    """Neither tables, sequences and columns, nor to create anything in the schema."""
    found = engine.query(
        """
        select c.relname::text from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and case
            when c.relkind = 'S' then has_sequence_privilege(%(role)s, c.oid, 'usage, select, update')
            when c.relkind in ('r', 'p', 'v', 'm', 'f')
                then has_table_privilege(%(role)s, c.oid, 'select, insert, update, delete, truncate')
                    or has_table_privilege(%(role)s, c.oid, 'references, trigger')
                    or has_any_column_privilege(%(role)s, c.oid, 'select, insert, update, references')
            else false
        end
        union all
        select 'schema: create' where has_schema_privilege(%(role)s, 'penstock', 'create')
        union all
        select 'schema: usage' where has_schema_privilege(%(role)s, 'penstock', 'usage') <> %(uses)s
        """.replace("%(role)s", "%s").replace("%(uses)s", "%s"),
        *[role or login] * 6,
        role is not None,
    )
    assert found == []


def test_definers_trust_no_search_path(engine: Engine) -> None:
    for signature, name, is_definer, settings in engine.query(FUNCTIONS):
        paths = [setting for setting in settings if setting.startswith("search_path=")]
        if is_definer:
            assert not name.startswith("_"), f"{signature}: a way around the roles"
            assert paths == ["search_path=pg_catalog, penstock, pg_temp"], signature
        assert all(path.endswith(", pg_temp") for path in paths), signature


# A restricted queue x every function x every right


@pytest.fixture
def house(engine: Engine) -> Engine:
    """An open queue and a restricted one, of one topic; in the restricted one a message of each kind."""
    engine.query("select penstock.create_topic('t')")
    engine.query("select penstock.create_queue('open')")
    engine.query("select penstock.create_queue('shut', 't', exclusive => true)")
    engine.query("select penstock.send_messages('shut', array_fill('\"secret\"'::jsonb, array[6]))")
    # 1 and 2: held. 3: held by another. 4: dead. The others wait.
    engine.query("select from penstock.consume_messages_batch('shut', 'holder', 3600, 2)")
    engine.query("select from penstock.consume_messages_batch('shut', 'other', 3600, 2)")
    engine.query("select penstock.reject_message('shut', 4, 'other', 'secret')")
    engine.query("select penstock.send_message('shut', '1', priority => 0)")
    engine.query("select from penstock.consume_messages_batch('shut', 'parker', 3600, 1)")
    engine.query("select penstock.park_messages('shut', '{7}', 'parker', '{secret}')")
    engine.query("select penstock.create_group(2, 'shut', '1', '{\"secret\": 1}')")
    engine.query(
        "select penstock.put_schedule('s', 'shut', '1', null, 2, null, null, '1', 'skip', '2030-01-01')"
    )
    engine.query("select penstock.register_worker('holder', 'h', 1, '1', '{shut}', '{secret}', 1)")
    # The worker runs none of what it holds, and one message is of a priority without a permit.
    engine.query("update penstock.active set claimed_at = claimed_at - interval '1 hour' returning id")
    engine.query(
        "select penstock.alter_queue("
        "'shut', max_active => 100, min_active => 0, priority_shares => '{30,30,40,0}')"
    )
    engine.query("select penstock.send_message('shut', '\"secret\"', priority => 3)")
    engine.query("select penstock.start_operation('redrive', 'shut', 'secret')")
    engine.query("select penstock.record_action('redrive', 'shut', '\"secret\"')")
    engine.query("select penstock.grant_queue('penstock_admin', 'shut', 'publish')")
    return engine


@pytest.fixture
def member(house: Engine, login: str) -> Iterator[str]:
    """A role that may call everything that is not an administrator's."""
    for role in BY_RIGHT.values():
        house.connection.execute(f'grant {role} to "{login}"')
    yield login
    house.connection.execute("reset role")


def test_every_function_is_in_the_matrix() -> None:
    admin_only = {name for name, roles in callable_by().items() if roles == {"penstock_admin"}}
    assert callable_by().keys() - admin_only == CALLS.keys()


def outcome(engine: Engine, role: str, call: Call) -> str:
    """What a call comes to, in a transaction that is undone: its rows as text, or the SQLSTATE."""
    rows: psycopg.Cursor[dict[str, Any]] = psycopg.Cursor(engine.connection, row_factory=kwargs_row(dict))
    with engine.connection.transaction(force_rollback=True):
        engine.connection.execute(f'set local role "{role}"')
        try:
            found = rows.execute(f"select * from penstock.{call.text}".encode()).fetchall()
        except psycopg.Error as exc:
            return str(exc.sqlstate)
    return json.dumps(found, default=str)


def assert_denied(call: Call, found: str) -> None:
    if call.refused:
        assert found == DENIED
    else:
        assert "shut" not in found
        assert "secret" not in found


def assert_allowed(call: Call, found: str) -> None:
    assert found.startswith("["), found
    if not call.refused:
        assert "shut" in found


CONCERNED = [name for name, call in CALLS.items() if call.refused is not None]


@pytest.mark.parametrize("name", CONCERNED)
def test_a_role_needs_a_right_in_a_restricted_queue(house: Engine, member: str, name: str) -> None:
    call = CALLS[name]
    assert_denied(call, outcome(house, member, call))
    for right in RIGHTS:
        house.value("grant_queue", member, "shut", right)
        if right in call.needs:
            assert_allowed(call, outcome(house, member, call))
        else:
            assert_denied(call, outcome(house, member, call))
        house.value("revoke_queue", member, "shut", right)
    assert_denied(call, outcome(house, member, call))


@pytest.mark.parametrize("name", CONCERNED)
def test_open_again_and_open_before(house: Engine, member: str, name: str) -> None:
    house.value("open_queue", "shut")
    assert_allowed(CALLS[name], outcome(house, member, CALLS[name]))


@pytest.mark.parametrize("name", CONCERNED)
def test_an_administrator_needs_no_right(house: Engine, login: str, name: str) -> None:
    house.connection.execute(f'grant penstock_admin to "{login}"')
    assert_allowed(CALLS[name], outcome(house, login, CALLS[name]))


def test_a_refusal_changes_nothing(house: Engine, member: str) -> None:
    with house.unchanged():
        for name in CONCERNED:
            with house.connection.transaction():
                house.connection.execute(f'set local role "{member}"')
                if CALLS[name].refused:
                    with pytest.raises(psycopg.Error), house.connection.transaction():
                        house.connection.execute(f"select * from penstock.{CALLS[name].text}".encode())


def test_a_pulse_over_all_queues_leaves_those_without_the_right(house: Engine, member: str) -> None:
    with house.connection.transaction(force_rollback=True):
        house.connection.execute(f'set local role "{member}"')
        assert house.value("pulse", "holder", 60) == 0
    house.value("grant_queue", member, "shut", "consume")
    house.connection.execute(f'set role "{member}"')
    assert house.value("pulse", "holder", 60) == 2


# Tokens


LOOKING = [name for name, roles in callable_by().items() if "penstock_viewer" in roles]


@pytest.mark.parametrize("name", LOOKING)
def test_no_token_leaves_by_a_function_that_looks(house: Engine, name: str) -> None:
    secret = f"token {secrets.token_hex(8)}"
    house.query("select penstock.open_queue('shut')")
    house.query("select penstock.nack_message('shut', 1, 'holder')")
    house.query(f"select from penstock.consume_messages_batch('shut', '{secret}')")
    house.query(f"select penstock.ack_message('shut', 1, '{secret}')")
    house.query(f"select penstock.register_worker('{secret}', 'h', 1, '1', '{{shut}}', '{{}}', 1)")
    call = CALLS[name] if CALLS[name].text else Call(f"{name}('shut')" if "channel" in name else f"{name}()")
    for message_id in (1, 5):
        text = call.text.replace("'shut', 1)", f"'shut', {message_id})").replace(
            "'shut', 2)", f"'shut', {message_id})"
        )
        assert secret not in outcome(house, "penstock_viewer", Call(text))


def read(engine: Engine, function: str, *arguments: Any) -> list[Any]:
    return engine.rows(function, *arguments)


def test_a_fingerprint_tells_which_worker_holds_a_message(house: Engine) -> None:
    (worker,) = read(house, "list_workers")
    assert read(house, "get_message", "shut", 1)[0].consumer == worker.consumer
    # After it lost contact, a worker goes on under a token with a number.
    house.query("select penstock.nack_message('shut', 1, 'holder')")
    house.query("select from penstock.consume_messages_batch('shut', 'holder-2')")
    assert read(house, "get_message", "shut", 1)[0].consumer == worker.consumer
    assert read(house, "get_message", "shut", 3)[0].consumer != worker.consumer
