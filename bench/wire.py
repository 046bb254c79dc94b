"""Prepared statements over libpq without a driver's conversions: the client must not be what is measured."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

TEXT_OID = 25
BIGINT_OID = 20
JSONB_OID = 3802
POSTGRES_EPOCH = 946_684_800.0
"""2000-01-01 in Unix time: where PostgreSQL's binary timestamps start."""

_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Wire:
    """One autocommit connection on which every parameter and every result travels in binary."""

    def __init__(self, dsn: str, settings: Mapping[str, str] | None = None) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        for name, value in (settings or {}).items():
            self._connection.execute("select set_config(%s, %s, false)", (name, value))
        self._pgconn = self._connection.pgconn
        self._schedstat = Path(f"/proc/{self._pgconn.backend_pid}/schedstat")
        self._prepared = 0

    def prepare(self, sql: str) -> bytes:
        """Prepare a statement; returns the name to run it by."""
        self._prepared += 1
        name = b"s%d" % self._prepared
        self._checked(self._pgconn.prepare(name, sql.encode()))
        return name

    def run(self, statement: bytes, parameters: Sequence[bytes]) -> PGresult:
        """Run a prepared statement in one round trip."""
        formats = (1,) * len(parameters)
        return self._checked(self._pgconn.exec_prepared(statement, parameters, formats, 1))

    def command(self, sql: str) -> None:
        """Run a plain command, such as begin or commit."""
        self._checked(self._pgconn.exec_(sql.encode()))

    def server_cpu(self) -> float:
        """Seconds of processor that the server's process of this connection has used; 0 where unknown."""
        try:
            return int(self._schedstat.read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):  # the server is elsewhere, or this is not Linux
            return 0.0

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _checked(self, result: PGresult) -> PGresult:
        if result.status not in _DONE:
            raise RuntimeError(result.error_message.decode(errors="replace").strip())
        return result


def integer(value: int) -> bytes:
    """An int4."""
    return struct.pack(">i", value)


def json(text: bytes) -> bytes:
    """A jsonb."""
    return b"\x01" + text


def array(oid: int, elements: Sequence[bytes]) -> bytes:
    """A one-dimensional array of elements already in binary form."""
    head = struct.pack(">iiiii", 1, 0, oid, len(elements), 1)
    return head + b"".join(struct.pack(">i", len(element)) + element for element in elements)


def bigint_array(elements: Iterable[bytes]) -> bytes:
    """A bigint[]: the hot case of `array`, since each ack builds one."""
    body = b"\x00\x00\x00\x08".join((b"", *elements))
    return struct.pack(">iiiii", 1, 0, BIGINT_OID, len(body) // 12, 1) + body


def column(result: PGresult, number: int) -> list[bytes]:
    """One column of a result, raw; a null is empty."""
    return [result.get_value(row, number) or b"" for row in range(result.ntuples)]


def unix_time(timestamp: bytes) -> float:
    """A binary timestamptz as Unix time."""
    microseconds: int = struct.unpack(">q", timestamp)[0]
    return POSTGRES_EPOCH + microseconds / 1e6


def small_integer(value: bytes) -> int:
    """A binary int2, int4 or int8 as a number."""
    return int.from_bytes(value, "big", signed=True)
