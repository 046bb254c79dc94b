"""Arguments and options that several commands take, and how their values are read."""

# ruff: noqa: PLC0415 - what only a completion needs is imported there

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .failures import Failure
from .output import is_terminal, printable

__all__ = [
    "complete_queue",
    "complete_schedule",
    "complete_topic",
    "confirm",
    "duration",
    "list_of",
    "message_argument",
    "page_options",
    "payload_option",
    "priority",
    "priority_name",
    "queue_argument",
    "service_options",
    "topic_argument",
    "whole_seconds",
    "yes_option",
]

Command = TypeVar("Command", bound=Callable[..., Any])

UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
LONGEST_SECONDS = 100 * 365.25 * 86400
PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])\s*")
PRIORITIES = ("urgent", "high", "normal", "low")


def duration(value: str) -> float:
    """Seconds, or a number with a unit: 500ms, 90, 90s, 5m, 2h, 1d; also several: 1h30m."""
    text = value.strip().lower()
    parts = PART.findall(text)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        seconds = float(text)
    elif parts and not PART.sub("", text):
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    else:
        raise click.BadParameter(f"{value!r} is no length of time: write 30, 500ms, 30s, 5m, 2h or 1d")
    if seconds > LONGEST_SECONDS:
        raise click.BadParameter(f"{value!r} is more than a hundred years")
    # 1.1d is 95040.00000000001 seconds.
    seconds = round(seconds, 6)
    return int(seconds) if seconds == int(seconds) else seconds


def whole_seconds(value: str) -> int:
    """A length of time without a fraction of a second."""
    seconds = duration(value)
    if seconds != int(seconds):
        raise click.BadParameter(f"{value!r} is not a whole number of seconds")
    return int(seconds)


def priority(value: str) -> int:
    """0 to 3, or its name."""
    if value.lower() in PRIORITIES:
        return PRIORITIES.index(value.lower())
    if re.fullmatch(r"[0-3]", value):
        return int(value)
    raise click.BadParameter(f"{value!r} is no priority: 0 to 3, or {', '.join(PRIORITIES)}")


def priority_name(number: int | None) -> str:
    return "" if number is None else f"{number} {PRIORITIES[number]}"


def list_of(each: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Values with commas between them."""

    def convert(value: str) -> list[Any]:
        try:
            return [each(part.strip()) for part in value.split(",")]
        except ValueError:
            raise click.BadParameter(f"{value!r} is no list of numbers: write 40,30,20,10") from None

    return convert


def queue_argument(command: Command) -> Command:
    return click.argument("queue_name", metavar="QUEUE", shell_complete=complete_queue)(command)


def topic_argument(command: Command) -> Command:
    return click.argument("topic_name", metavar="TOPIC", shell_complete=complete_topic)(command)


def message_argument(command: Command) -> Command:
    return click.argument("message_id", metavar="ID", type=click.IntRange(1))(command)


def page_options(command: Command) -> Command:
    """A list comes in pages: so many, from there on."""
    command = click.option("--after", metavar="CURSOR", help="Go on where a list ended.")(command)
    return click.option(
        "--count",
        "-n",
        "most",
        type=click.IntRange(1),
        default=100,
        show_default=True,
        help="At most so many.",
    )(command)


def service_options(command: Command) -> Command:
    """What runs for long is asked how it is, and logs."""
    command = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="What is logged, to stderr.",
    )(command)
    command = click.option(
        "--health-host",
        metavar="HOST",
        default="127.0.0.1",
        show_default=True,
        help="The address of --health-port; 0.0.0.0 for all, as probes of Kubernetes need it.",
    )(command)
    return click.option(
        "--health-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Answer probes here: /livez, /readyz; 0: on any free port.  [default: nowhere]",
    )(command)


def payload_option(command: Command) -> Command:
    text = "Print the payload alone: JSON, or bytes as they are."
    return click.option("--payload", is_flag=True, help=text)(command)


def yes_option(command: Command) -> Command:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. Without a terminal, --yes has to be given."""
    if yes:
        return
    if not is_terminal("stdin"):
        raise click.UsageError(f"{question} There is no terminal to ask on: give --yes.")
    try:
        is_wanted = click.confirm(printable(question), err=True)
    except click.Abort:
        click.echo(err=True)  # the cursor is still behind the question
        raise
    if not is_wanted:
        raise Failure("nothing was done")


def complete_queue(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from .completion import queue_names

    return queue_names(ctx, incomplete)


def complete_schedule(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from .completion import schedule_names

    return schedule_names(ctx, incomplete)


def complete_topic(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from .completion import topic_names

    return topic_names(ctx, incomplete)
