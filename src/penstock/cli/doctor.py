"""The command that looks for what is wrong: doctor."""

# ruff: noqa: PLC0415 - psycopg is imported when a database is examined, so that --help is quick

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from penstock.dsn import resolve_dsn

from .arguments import duration
from .connection import Session, connect, connect_or_embedded, with_session
from .failures import FAILED, Failure
from .output import facts, is_terminal, printable

if TYPE_CHECKING:
    import psycopg

    from penstock.doctor import Facts, Finding

__all__ = ["doctor"]

# The worst comes last, where a terminal stops.
ORDER = ("ok", "unknown", "warning", "problem")
COLOURS = {"ok": "green", "unknown": "cyan", "warning": "yellow", "problem": "bold red"}
WORDS = {"problem": "problem", "warning": "warning", "unknown": "not checked", "ok": "ok"}
PATIENCE = 300.0


def complete_check(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from penstock.doctor import CHECKS

    return [check.name for check in CHECKS if check.name.startswith(incomplete)]


@click.command()
@click.option("--quiet", is_flag=True, help="Print only what is wrong.")
@click.option("--strict", is_flag=True, help="Fail on warnings, and on what could not be checked.")
@click.option(
    "--check", "only", metavar="NAME", multiple=True, shell_complete=complete_check, help="Only this check."
)
@click.option("--skip", metavar="NAME", multiple=True, shell_complete=complete_check, help="Not this check.")
@click.option("--list", "list_", is_flag=True, help="List the checks.")
@click.option(
    "--patience",
    type=duration,
    metavar="DURATION",
    default=str(PATIENCE),
    help="How long a transaction may be open, a message wait, maintenance be late: then it is a warning, and "
    "a problem after twelve times that.  [default: 5m]",
)
@with_session
def doctor(
    session: Session,
    *,
    quiet: bool,
    strict: bool,
    only: Sequence[str],
    skip: Sequence[str],
    list_: bool,
    patience: float,
) -> None:
    """Look for what is wrong, and say what to do.

    It changes nothing, and takes a second or two, whatever the size of the queues. Exit code 1 where there is
    a problem; with --strict also where there is a warning.
    """
    from penstock.doctor import CHECKS, Limits, examine

    names = [check.name for check in CHECKS]
    for name in (*only, *skip):
        if name not in names:
            raise click.BadParameter(f"there is no check {name!r}: {', '.join(names)}")
    if list_:
        _print_checks(session)
        return
    found = examine(_gather(session), Limits(patience=patience), only=only, skip=skip)
    shown = [finding for finding in found if finding.status != "ok" or not quiet]
    if session.as_json:
        session.output.json([facts(finding) for finding in shown])
    else:
        _print(shown)
        if shown or not quiet:
            session.output.note(_summary(found))
    wrong = {"problem", "warning", "unknown"} if strict else {"problem"}
    if any(finding.status in wrong for finding in found):
        raise Failure(exit_code=FAILED)


def _gather(session: Session) -> Facts:
    from penstock.doctor import gather

    with connect_or_embedded(session.dsn) as connection:
        return gather(connection, _another(session))


def _another(session: Session) -> Callable[[], AbstractContextManager[psycopg.Connection[Any]]] | None:
    """How to make another connection; None where it is the embedded server, which has no pooler."""
    dsn = resolve_dsn(session.dsn, os.environ)
    if dsn is None:
        return None
    return lambda: connect(dsn)


# What is printed


def _print_checks(session: Session) -> None:
    from penstock.doctor import CHECKS

    if session.as_json:
        session.output.json([{"name": check.name, "about": check.about} for check in CHECKS])
    else:
        session.output.table(("CHECK", "LOOKS FOR"), [(check.name, check.about) for check in CHECKS])


def _print(findings: Sequence[Finding]) -> None:
    ordered = [finding for status in ORDER for finding in findings if finding.status == status]
    blocks = list(_merged(ordered))
    if is_terminal():
        _print_coloured(blocks)
        return
    for finding in blocks:
        click.echo("\n".join([_head(finding), *_rest(finding)]))


def _merged(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Checks that failed for the same reason are reported together."""
    unknown: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.status == "unknown":
            unknown.setdefault(finding.found, []).append(finding)
    for finding in findings:
        if finding.status != "unknown":
            yield finding
        elif (same := unknown.pop(finding.found, None)) is not None:
            yield replace(finding, check=", ".join(each.check for each in same))


def _head(finding: Finding) -> str:
    check = f"{finding.check}:"
    subject = printable(finding.subject or "")
    if finding.status == "ok":
        about = f"{subject}: " if subject else ""
        return f"{finding.status:<8} {check:<13} {about}{printable(finding.found)}"
    return f"{finding.status:<8} {check} {subject}".rstrip(" :")


def _rest(finding: Finding) -> Iterator[str]:
    if finding.status != "ok":
        yield f"         {printable(finding.found)}"
        if finding.advice:
            yield f"         {printable(finding.advice)}"
        if finding.command:
            yield f"             {printable(finding.command)}"


def _print_coloured(findings: Iterable[Finding]) -> None:
    """With colours, and lines that are broken between words; what is to be pasted is left whole."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console()
    for finding in findings:
        head = Text(_head(finding))
        head.stylize(COLOURS[finding.status], 0, len(finding.status))
        if finding.status == "ok":
            console.print(Padding(head, (0, 0)))
            continue
        console.print(head)
        console.print(Padding(Text(printable(finding.found)), (0, 0, 0, 9)))
        if finding.advice:
            console.print(Padding(Text(printable(finding.advice)), (0, 0, 0, 9)))
        if finding.command:
            console.print(Text(f"             {printable(finding.command)}", style="bold"), soft_wrap=True)


def _summary(findings: Sequence[Finding]) -> str:
    parts = []
    for status in reversed(ORDER):
        number = sum(finding.status == status for finding in findings)
        if number:
            plural = "s" if number > 1 and status in ("problem", "warning") else ""
            parts.append(f"{number} {WORDS[status]}{plural}")
    return ", ".join(parts)
