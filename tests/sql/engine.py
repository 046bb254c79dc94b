"""The SQL API as tests call it: any function by its name, the common ones by a short method."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

# A row of any function; its columns are its attributes.
Row = SimpleNamespace

Snapshot = dict[str, list[str]]

TABLES = """
    select c.relname from pg_class c
    where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r' order by c.relname
"""


def adapt(value: Any) -> Any:
    """Dicts are JSON, alone or in a list; all else goes as psycopg has it."""
    if isinstance(value, dict):
        return Jsonb(value)
    if isinstance(value, list):
        return [adapt(item) for item in value]
    return value


def fingerprint(token: str) -> str:
    """What listings show of a token; a number at its end does not count."""
    name = re.sub(r"-[0-9]+$", "", token)
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]


class Engine:
    """Calls the functions of schema penstock on one connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def rows(self, function: str, *positional: Any, **named: Any) -> list[Row]:
        arguments = ["%s"] * len(positional) + [f"{name} => %s" for name in named]
        values = [adapt(value) for value in (*positional, *named.values())]
        with self.connection.cursor(row_factory=kwargs_row(Row)) as cursor:
            cursor.execute(f"select * from penstock.{function}({', '.join(arguments)})".encode(), values)
            return cursor.fetchall()

    def row(self, function: str, *positional: Any, **named: Any) -> Row:
        """The one row that there must be."""
        (row,) = self.rows(function, *positional, **named)
        return row

    def values(self, function: str, *positional: Any, **named: Any) -> list[Any]:
        """The column of a function that returns a set of scalars."""
        return [next(iter(vars(row).values())) for row in self.rows(function, *positional, **named)]

    def value(self, function: str, *positional: Any, **named: Any) -> Any:
        (value,) = self.values(function, *positional, **named)
        return value

    def query(self, statement: str, *values: Any) -> list[Any]:
        """Rows of a query on the tables themselves, for what no function shows."""
        return self.connection.execute(statement.encode(), values).fetchall()

    def count(self, table: str) -> int:
        """How many rows a table of the schema has."""
        ((number,),) = self.query(f"select count(*) from penstock.{table}")
        assert isinstance(number, int)
        return number

    def now(self) -> datetime:
        now = self.value("clock")
        assert isinstance(now, datetime)
        return now

    # the common calls, short

    def topic(self, name: str, *queues: str, **settings: Any) -> None:
        """A topic with queues."""
        self.value("create_topic", name)
        for queue in queues:
            self.value("create_queue", queue, name, **settings)

    def queue(self, name: str, **settings: Any) -> None:
        self.value("create_queue", name, **settings)

    def publish(self, topic: str, payload: Any = 1, **options: Any) -> int:
        message_id = self.value("publish_message", topic, Jsonb(payload), **options)
        assert isinstance(message_id, int)
        return message_id

    def send(self, queue: str, payload: Any = 1, **options: Any) -> int:
        message_id = self.value("send_message", queue, Jsonb(payload), **options)
        assert isinstance(message_id, int)
        return message_id

    def send_many(self, queue: str, payloads: list[Any], **options: Any) -> list[int]:
        return self.values("send_messages", queue, [Jsonb(payload) for payload in payloads], **options)

    def send_body(self, queue: str, body: bytes, **options: Any) -> int:
        message_id = self.value("send_message", queue, None, body=body, **options)
        assert isinstance(message_id, int)
        return message_id

    def take(self, queue: str, token: str | None = None, **options: Any) -> Row:
        """Claims the next message, which must be there."""
        return self.row("consume_message", queue, token, **options)

    def take_many(self, queue: str, batch_size: int, token: str | None = None, **options: Any) -> list[Row]:
        return self.rows("consume_messages_batch", queue, token, batch_size=batch_size, **options)

    def nothing_to_take(self, queue: str) -> bool:
        return self.rows("consume_message", queue) == []

    def ack(self, message: Row, **options: Any) -> bool:
        return self._settle("ack_message", message, **options)

    def nack(self, message: Row, **options: Any) -> bool:
        return self._settle("nack_message", message, **options)

    def release(self, message: Row, **options: Any) -> bool:
        return self._settle("release_message", message, **options)

    def reject(self, message: Row, **options: Any) -> bool:
        return self._settle("reject_message", message, **options)

    def _settle(self, function: str, message: Row, **options: Any) -> bool:
        done = self.value(function, message.queue_name, message.message_id, message.consumer_token, **options)
        assert isinstance(done, bool)
        return done

    def maintain(self) -> dict[str, int]:
        """What one round did: how many of each kind, all queues together."""
        did: dict[str, int] = {}
        for row in self.rows("maintain"):
            did[row.action] = did.get(row.action, 0) + row.affected
        return did

    def maintain_all(self) -> dict[str, int]:
        """What several rounds did, until there was nothing to do: a round that locks much is brief."""
        did: dict[str, int] = {}
        for _ in range(10):
            round_did = self.maintain()
            if not round_did:
                return did
            for action, number in round_did.items():
                did[action] = did.get(action, 0) + number
        raise AssertionError(f"it does not come to an end: {did}")

    def message(self, queue: str, message_id: int) -> Row:
        return self.row("get_message", queue, message_id)

    def state(self, queue: str, message_id: int) -> str | None:
        """The state of a message, None where it is unknown."""
        rows = self.rows("get_message", queue, message_id)
        return rows[0].state if rows else None

    def states(self, queue: str) -> dict[int, str]:
        """All messages of a queue, with their states."""
        return {row.message_id: row.state for row in self.rows("list_messages", queue, page_size=10000)}

    def statistics(self, queue: str) -> Row:
        return self.row("get_queue_statistics", queue)

    def explain(self, queue: str, message_id: int) -> str:
        text = self.value("explain_delivery", queue, message_id)
        assert isinstance(text, str)
        return text

    def settings(self, queue: str) -> Row:
        (row,) = [row for row in self.rows("list_queues") if row.name == queue]
        return row

    def held_keys(self) -> int:
        """How many dedup keys refuse a message, over all queues."""
        ((keys,),) = self.query("select count(id) from penstock.dedup")
        return int(keys)

    # what must not have changed

    def snapshot(self) -> Snapshot:
        """Every row of every table, except those of free dedup keys: they hold nothing."""
        tables = [name for (name,) in self.query(TABLES)]
        union = " union all ".join(
            f"select '{name}', t::text from penstock.{name} t"
            + (" where t.id is not null" if name == "dedup" else "")
            for name in tables
        )
        rows: Snapshot = {name: [] for name in tables}
        for name, row in self.query(union):
            rows[name].append(row)
        return {name: sorted(lines) for name, lines in rows.items()}

    def belongings(self) -> Snapshot:
        """Every row that belongs to a topic or a queue: all but notes of maintain() and for sample().

        A permit that was taken and returned is another row like it: permits are counted.
        """
        everything = self.snapshot()
        del everything["upkeep"], everything["floors"], everything["tallies"]
        counted = (
            "select queue_id, status, priority, tenant, count(*) from penstock.permits group by 1, 2, 3, 4"
            " order by 1, 2, 3, 4"
        )
        everything["permits"] = [str(row) for row in self.query(counted)]
        floors = [
            str(queue) for (queue,) in self.query("select distinct queue_id from penstock.floors order by 1")
        ]
        return {name: rows for name, rows in everything.items() if rows} | {"floors": floors}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What runs inside must leave all tables as they are."""
        before = self.snapshot()
        yield
        assert self.snapshot() == before

    @contextmanager
    def refused(self, sqlstate: str, *names: str) -> Iterator[None]:
        """What runs inside must fail with that SQLSTATE, name these things, and change nothing."""
        with self.unchanged(), pytest.raises(psycopg.Error) as caught, self.connection.transaction():
            yield
        assert caught.value.sqlstate == sqlstate, str(caught.value)
        for name in names:
            assert name in str(caught.value.diag.message_primary)
