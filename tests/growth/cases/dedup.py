"""Dedup keys: the messages that had a key before cost nothing, even while their rows cannot be removed."""

from __future__ import annotations

from functools import partial

from ..case import Case, Connection

USES = "earlier messages with the key, with vacuum held back"


def _used(sql: Connection, size: int) -> None:
    """A key that so many messages had, one after the other."""
    sql.execute("select penstock.create_queue('q')")
    sql.execute(
        f"""do $$ begin
            for n in 1..{size} loop
                perform penstock.cancel_message('q', penstock.send_message('q', '1', dedup_key => 'key'));
                commit;
            end loop;
        end $$""".encode()
    )


def _used_and_held(sql: Connection, size: int) -> None:
    _used(sql, size)
    sql.execute("select penstock.send_message('q', '1', dedup_key => 'key')")
    sql.execute("select * from penstock.consume_message('q', 't')")


_case = partial(Case, grows=USES, law="constant", sizes=(300, 3_000), most=1.5, holds_vacuum_back=True)

CASES = [
    _case(
        name="send_message() with a dedup key that is free",
        build=_used,
        call="select penstock.send_message('q', '1', dedup_key => 'key')",
    ),
    _case(
        name="send_message() with a dedup key that is held",
        build=_used_and_held,
        call="select penstock.send_message('q', '1', dedup_key => 'key')",
    ),
    _case(
        name="ack_message() with a dedup key",
        build=_used_and_held,
        call="select penstock.ack_message('q', (select max(id) from penstock.active), 't')",
    ),
]
