"""What each call costs as the database grows: `make bench-growth`.

Runs every case of tests/growth at larger sizes than the tests do: on a fresh database of each size, and with
vacuum held back. For the latter a session keeps a snapshot from before the build, and the database is built,
deleted and built again: there are as many dead rows as live ones. Blocks and locks are the same on every
machine; times are not.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import psycopg
from tests.growth.case import Case, old_snapshot
from tests.growth.cases import CASES

from bench import report
from bench.arena import Arena, arena
from bench.growing import costs
from bench.growing.costs import Finding
from bench.growing.turnover import turn_over
from bench.holders import held_snapshot
from penstock.schema import install

SCALE = 10
TEMPLATE, MEASURED = "growth_template", "growth"
SETTINGS = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}


def measure(server: Arena, case: Case, size: int, *, is_held: bool) -> float:
    """The cost of a case in a database of this size."""
    dsn = server.database(MEASURED, template=TEMPLATE)
    if not is_held:
        with old_snapshot(dsn) if case.holds_vacuum_back else nullcontext():
            return _built_and_measured(dsn, case, size)
    with held_snapshot(dsn, writes=False):
        with psycopg.connect(dsn, autocommit=True) as connection:
            base = turn_over(connection, lambda: case.build(connection, size))
        return _built_and_measured(dsn, case, size, base)


def _built_and_measured(dsn: str, case: Case, size: int, base: int = 0) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        case.build(connection, size)
        connection.execute("analyze")
    with psycopg.connect(dsn, autocommit=True) as caller:
        return case.measure(caller, size, base)


def find(server: Arena, case: Case, scale: int, *, hold: bool) -> Finding:
    """All measurements of a case."""
    small, large = (size * scale for size in case.sizes)
    at_small = measure(server, case, small, is_held=False)
    at_large = measure(server, case, large, is_held=False)
    held = None
    if hold:
        try:
            held = measure(server, case, large, is_held=True)
        except psycopg.Error as exc:
            tell(f"    cannot be built twice: {str(exc).splitlines()[0]}")
    return Finding(case, (small, large), at_small, at_large, held)


def tell(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def run(server: Arena, cases: list[Case], scale: int, *, hold: bool) -> list[Finding]:
    """All cases, one after the other."""
    with psycopg.connect(server.database(TEMPLATE), autocommit=True) as connection:
        install(connection)
    found = []
    for at, case in enumerate(cases, 1):
        tell(f"{at} of {len(cases)}: {case.name}, {case.grows}")
        started = time.monotonic()
        found.append(find(server, case, scale, hold=hold))
        bound = f"more than {case.most:g} times" if found[-1].is_missed else "within its bound"
        tell(f"    {' '.join(costs.row(found[-1])[5:])}: {bound}, {time.monotonic() - started:.0f} s")
    return found


def write(page: Path, found: list[Finding], version: str) -> None:
    """Put the rows into the page, in place of those of the same cases."""
    text = page.read_text("utf-8")
    rows = [costs.row(finding) for finding in found]
    anew = {costs.identity(row) for row in rows}
    kept = [row for row in costs.listed(text) if costs.identity(row) not in anew]
    page.write_text(costs.written(text, costs.ordered([*rows, *kept], CASES), version), "utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scale", type=int, default=SCALE, metavar="N", help=f"times the tests' sizes ({SCALE})"
    )
    parser.add_argument("--quick", action="store_true", help="the tests' sizes")
    parser.add_argument("--no-hold", action="store_true", help="not again with vacuum held back")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases whose call contains this")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table into this page")
    parser.add_argument("--missing", action="store_true", help="only cases that the page does not list yet")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    cases = [case for case in CASES if not given.only or any(text in case.name for text in given.only)]
    if given.missing:
        cases = costs.missing((given.page or costs.PAGE).read_text("utf-8"), cases)
    tell(report.load())
    with arena(SETTINGS) as server:
        found = run(server, cases, 1 if given.quick else given.scale, hold=not given.no_hold)
        version = server.version
    if found:
        print(report.table(costs.HEAD, [costs.row(finding) for finding in found]))
    missed = [finding for finding in found if finding.is_missed]
    for finding in missed:
        print(f"{finding.case.name}, {finding.case.grows}: more than {finding.case.most:g} times")
    if given.page is not None:
        write(given.page, found, version)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
