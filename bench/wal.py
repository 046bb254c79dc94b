"""What a task writes to the WAL, record by record: `python -m bench.wal`.

Tasks are enqueued in bulk and drained by a worker, as in `make bench-worker`.
pg_walinspect lists the records.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import psycopg

from bench import report
from bench.arena import arena
from bench.peers import measures, roster

WARM_UP = 2000
SECONDS = 600
RECORDS = """
    with blocks as (
        select b.start_lsn, string_agg(distinct coalesce(c.relname, b.relfilenode::text), ', ') as relation
        from pg_get_wal_block_info(%(begin)s, %(end)s, false) b
        left join pg_class c on pg_relation_filenode(c.oid) = b.relfilenode
        group by b.start_lsn
    )
    select
        r.resource_manager || ' ' || r.record_type, coalesce(b.relation, ''), count(*),
        sum(r.end_lsn - r.start_lsn)::float8, sum(r.fpi_length)::float8
    from pg_get_wal_records_info(%(begin)s, %(end)s) r left join blocks b using (start_lsn)
    group by 1, 2 order by 4 desc
"""
HEAD = ("record", "of", "a task", "bytes a task", "of these full pages")


def table(connection: psycopg.Connection[Any], begin: str, end: str, tasks: int) -> str:
    """The records between two positions; those of less than a tenth of a byte a task are left out."""
    found: Sequence[Any] = connection.execute(RECORDS, {"begin": begin, "end": end}).fetchall()
    rows = [
        (
            record,
            relation,
            *(f"{figure / tasks:.{digits}f}" for figure, digits in zip(figures, (3, 1, 1), strict=True)),
        )
        for record, relation, *figures in found
        if figures[1] / tasks >= 0.1
    ]
    return f"{report.table(HEAD, rows)}\nin all {sum(row[3] for row in found) / tasks:.1f} bytes a task"


def measure(tasks: int) -> None:
    ours = roster.CONTESTANTS["penstock"]
    with arena() as server:
        dsn = server.database("wal")
        measures.setup(ours, dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create extension pg_walinspect")

            def position() -> str:
                row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
                return str(row and row[0])

            # A page is written in full at its first change after a checkpoint: not in what is measured.
            connection.execute("checkpoint")
            measures.fill(ours, dsn, WARM_UP)
            measures.drain(ours, dsn, WARM_UP, SECONDS)
            begun = position()
            measures.fill(ours, dsn, tasks)
            enqueued = position()
            drained, _ = measures.drain(ours, dsn, tasks, SECONDS)
            ended = position()
            connection.execute("select pg_switch_wal()")
            print(f"PostgreSQL {server.version}, {tasks:,} tasks, {drained:,} of them drained")
            print(f"\nenqueue\n\n{table(connection, begun, enqueued, tasks)}")
            print(f"\nclaim and ack\n\n{table(connection, enqueued, ended, drained)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.wal", description=__doc__)
    parser.add_argument("--tasks", type=int, default=50_000)
    measure(parser.parse_args().tasks)


if __name__ == "__main__":
    main()
