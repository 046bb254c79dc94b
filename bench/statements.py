"""What the server itself counted of our statements (pg_stat_statements): blocks, time, rows."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from bench import report

_HERE = "dbid = (select oid from pg_database where datname = current_database())"


@dataclass(frozen=True, slots=True)
class Counted:
    """Calls of one kind of statement, and the blocks of shared buffers that they touched."""

    calls: int
    blocks: int

    def since(self, earlier: Counted) -> float:
        """Blocks per call since an earlier count."""
        calls = self.calls - earlier.calls
        return (self.blocks - earlier.blocks) / calls if calls else 0.0


def counted(connection: psycopg.Connection, text: str) -> Counted:
    """What the statements that a client sent and that contain a text have cost so far."""
    row = connection.execute(
        "select coalesce(sum(calls), 0)::bigint, coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint"
        f" from pg_stat_statements where {_HERE} and toplevel and strpos(query, %s) > 0",
        (text,),
    ).fetchone()
    return Counted(*row) if row else Counted(0, 0)


def reset(dsn: str) -> None:
    """Forget all counts."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_stat_statements_reset()")


def profile(dsn: str, top: int = 25) -> str:
    """Where the time went: the costliest statements, those inside of our functions included."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(
            "select case when toplevel then 'call' else 'inside' end, calls, total_exec_time,"
            " mean_exec_time * 1000, rows::float8 / calls,"
            " (shared_blks_hit + shared_blks_read)::float8 / calls,"
            " shared_blks_dirtied::float8 / calls, wal_bytes::float8 / calls,"
            " left(regexp_replace(query, '\\s+', ' ', 'g'), 110)"
            f" from pg_stat_statements where {_HERE} and calls > 10 order by total_exec_time desc limit %s",
            (top,),
        ).fetchall()
    head = ("kind", "calls", "total ms", "us/call", "rows", "blocks", "dirtied", "WAL bytes", "statement")
    rows = [
        (kind, report.count(calls), report.count(total), *(f"{figure:.1f}" for figure in figures), text)
        for kind, calls, total, *figures, text in found
    ]
    return report.table(head, rows)
