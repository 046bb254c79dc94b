"""What really runs: the plan of each statement inside a call, with its blocks, as auto_explain saw it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

Plan = dict[str, Any]

# Tables that are empty one moment and huge the next. The others hold configuration: a few rows.
HOT = (
    *("ready", "scheduled", "waiting", "active", "permits", "dead", "done", "floors"),
    *("dedup", "payloads", "payload_references", "tenants", "line_checks"),
)

SETTINGS = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "log_min_messages": "fatal",  # to the client only
    "client_min_messages": "log",
}


def table_of(node: Plan) -> str | None:
    """The hot table that a node reads or writes; the days of done are done."""
    name: str = node.get("Relation Name", "")
    name = "done" if name.startswith("done_") else name
    return name if name in HOT else None


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as it ran."""

    text: str
    plan: Plan
    compiled: bool
    """Whether it was compiled by JIT."""

    @property
    def blocks(self) -> int:
        return int(self.plan.get("Shared Hit Blocks", 0) + self.plan.get("Shared Read Blocks", 0))

    def nodes(self) -> Iterator[Plan]:
        stack = [self.plan]
        while stack:
            node = stack.pop()
            yield node
            stack += node.get("Plans", [])


@dataclass(frozen=True, slots=True)
class Observed:
    """A call: the statements inside it, and all blocks that it touched."""

    statements: list[Statement]
    blocks: int


class Session:
    """A connection that sees the plans of what it runs. Nothing it runs stays: each call is rolled back."""

    def __init__(self, connection: psycopg.Connection[Any], *, jit: bool = False) -> None:
        self._connection = connection
        self._notices: list[str] = []
        connection.add_notice_handler(lambda notice: self._notices.append(notice.message_primary or ""))
        connection.execute(f"set jit = {'on' if jit else 'off'}")
        connection.execute("load 'auto_explain'")

    def run(self, call: str, params: dict[str, Any] | None = None) -> None:
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(call, params)

    def observe(self, call: str, params: dict[str, Any] | None = None) -> Observed:
        with self._connection.transaction(force_rollback=True):
            for name, value in SETTINGS.items():
                self._connection.execute(f"set local {name} = {value}")
            self._notices.clear()
            self._connection.execute(call, params)
        # Only now: the call itself is logged when its portal is closed.
        seen = [json.loads(n.partition("plan:")[2]) for n in self._notices if "plan:" in n]
        statements = [Statement(p["Query Text"], p["Plan"], "JIT" in p) for p in seen]
        # The call itself ends last, and its blocks are those of all within it.
        return Observed(statements[:-1], statements[-1].blocks)


def problems(statement: Statement, indexes: dict[str, set[str]], most_rows: int | None) -> Iterator[str]:
    """What is wrong with the plan of a statement: how it reads a hot table, sorts, or that it is compiled."""
    if statement.compiled:
        yield "is compiled by JIT"
    for node in statement.nodes():
        table = table_of(node)
        kind: str = node["Node Type"]
        if table is not None and kind.endswith("Scan"):
            yield from _scan_problems(node, table, indexes, most_rows)
        if kind in ("Sort", "Incremental Sort"):
            yield from (f"sorts {name} without a limit" for name in _unbounded(node))


def _scan_problems(
    node: Plan, table: str, indexes: dict[str, set[str]], most_rows: int | None
) -> Iterator[str]:
    kind, index = node["Node Type"], node.get("Index Name", "")
    if kind in ("Seq Scan", "Bitmap Heap Scan"):
        yield f"reads {table} by {kind}"
    elif kind.startswith("Index"):
        # The index of a day is named after the day.
        expected = indexes.get(table, set())
        if not any(
            index == name or (table == "done" and index.endswith("_queue_id_id_idx")) for name in expected
        ):
            yield f"reads {table} by {index}, not by {sorted(expected)}"
    visited = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    if most_rows is not None and visited > most_rows:
        yield f"visits {visited:.0f} rows of {table} by {index or kind} ({node.get('Index Cond')})"


def _unbounded(sort: Plan) -> Iterator[str]:
    """The hot tables below a sort that neither a limit nor a key holds back."""
    stack = [child for child in sort.get("Plans", []) if child.get("Parent Relationship") != "InitPlan"]
    while stack:
        node = stack.pop()
        table = table_of(node)
        if node["Node Type"] == "Limit":
            continue
        if (
            table is not None
            and node["Node Type"].endswith("Scan")
            and "id = " not in node.get("Index Cond", "")
        ):
            yield table
        stack += node.get("Plans", [])
