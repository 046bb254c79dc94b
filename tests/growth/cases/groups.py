"""Groups: maintain() examines an open group by one probe, however many of its members are done."""

from __future__ import annotations

from ..case import Case, Connection

EXAMINE = "select * from penstock._examine_groups(0, now(), clock_timestamp() + interval '1 minute')"


def _open(sql: Connection, size: int) -> None:
    """200 groups with so many members: all are done but one. maintain() has found that before."""
    sql.execute("select penstock.create_queue('then')")
    sql.execute(
        "select count(penstock.create_group(%s, 'then', '{}', '{}')) from generate_series(1, 200)", [size]
    )
    sql.execute(
        """insert into penstock.group_results (group_id, position, message_id)
        select g.id, n, n from penstock.groups g, generate_series(1, %s) n""",
        [size - 1],
    )
    sql.execute("analyze")
    for _ in range(3):
        sql.execute(EXAMINE)


CASES = [
    Case(
        name="finish_groups() of all, 200 open groups",
        grows="members that are done, in each group",
        law="constant",
        build=_open,
        call="select penstock.finish_groups()",
        sizes=(500, 1_500),
        most=1.5,
    ),
    Case(
        name="maintain(), 200 open groups",
        grows="members that are done, in each group",
        law="constant",
        build=_open,
        call=EXAMINE,
        sizes=(500, 1_500),
        most=1.5,
    ),
]
