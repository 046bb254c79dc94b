"""Writes docs/reference/cli.md from the commands themselves; --check fails if it is out of step."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence

import click
from tools.page import REFERENCE, write_or_check

from penstock.cli import COMMANDS, main
from penstock.cli.failures import FAILED, INTERRUPTED, NOT_FOUND, NOTHING_THERE, USAGE

WIDTH = 100

INTRODUCTION = """\
<!-- Written by tools/clidoc.py from the commands in src/penstock/cli: change those, then run `make docs`. -->

# The command line

All commands of `penstock`. What to type when: [operate](../how-to/operate.md). In a terminal,
`penstock COMMAND --help` says the same.
"""

CONVENTIONS = """\
## Conventions

Data goes to stdout, everything else to stderr: what was done, questions, progress, warnings, errors. Tables
have colours where stdout is a terminal. What destroys asks first; in a script, which cannot answer, it
wants `--yes`.

A length of time is a number of seconds, or has units: `500ms`, `30s`, `5m`, `2h`, `1d`, `1h30m`. A priority
is `urgent`, `high`, `normal`, `low`, or 0 to 3.

Options of most commands:

| option | meaning |
| --- | --- |
| `--dsn DSN` | the database: `postgresql://user:password@host:port/name`; else see [below](#environment) |
| `--json` | for programs: one document for a list or a thing, a line for each of a stream |
| `-y`, `--yes` | do not ask |
| `-h`, `--help` | help |
"""

# Named once above; in a table only where a command means something else by it.
COMMON = {"--dsn", "--json", "--yes", "--help"}

EXIT_CODES = {
    0: "done",
    FAILED: "failed; a line on stderr says why",
    USAGE: "wrong usage: an option, an argument, a value",
    NOT_FOUND: "what was named does not exist: a queue, a topic, a message",
    NOTHING_THERE: "nothing there: no message to take, no dead letter to show",
    INTERRUPTED: "interrupted by Ctrl-C",
}

ENVIRONMENT = {
    "PENSTOCK_DATABASE_URL": "the database, where `--dsn` is not given",
    "DATABASE_URL": "the same, where that is not set either; `postgresql+driver://` is understood",
    "PGHOST, PGPORT, PGDATABASE, PGUSER, PGSERVICE ...": "libpq's own, where none of these is set. Where "
    "nothing is, the embedded server: it is started if need be, and stops when no process uses it",
    "NO_COLOR": "no colours",
    "SHELL": "the shell of `penstock completion`",
    "NOTIFY_SOCKET, WATCHDOG_USEC": "set by systemd for a service with `Type=notify`: `worker` and `up` say "
    "when they are ready, and that they are alive",
}


def run() -> int:
    return write_or_check(__doc__, REFERENCE / "cli.md", render, "the commands")


def render() -> str:
    """The page."""
    root = click.Context(main, info_name="penstock", **main.context_settings)
    found = {name: _load(root, name) for name in COMMANDS}
    lines = [INTRODUCTION, *_contents(found), "", CONVENTIONS]
    lines += ["## Exit codes", "", *_table(("code", "meaning"), [(str(c), m) for c, m in EXIT_CODES.items()])]
    names = [(", ".join(f"`{each}`" for each in names.split(", ")), m) for names, m in ENVIRONMENT.items()]
    names = [(name.replace(" ...`", "` ..."), meaning) for name, meaning in names]
    lines += ["", "## Environment", "", *_table(("variable", "meaning"), names)]
    for name, command in found.items():
        lines += ["", *_described(click.Context(command, info_name=name, parent=root), 2)]
    text = "\n".join(lines).rstrip() + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def _load(root: click.Context, name: str) -> click.Command:
    try:
        command = main.get_command(root, name)
    except (ImportError, AttributeError) as exc:
        raise SystemExit(f"penstock {name} cannot be loaded: {exc}") from exc
    assert command is not None
    return command


def _contents(found: dict[str, click.Command]) -> Iterator[str]:
    for heading in dict.fromkeys(entry.heading for entry in COMMANDS.values()):
        rows = []
        for name, entry in COMMANDS.items():
            if entry.heading == heading:
                rows.append(
                    (f"[{name}](#{_anchor(f'penstock {name}')})", _more(name, found[name], entry.help))
                )
        yield from ("", f"**{heading}**", "", *_table(("command", ""), rows))


def _more(name: str, command: click.Command, text: str) -> str:
    if not isinstance(command, click.Group):
        return text
    parts = (f"[{part}](#{_anchor(f'penstock {name} {part}')})" for part in command.commands)
    return ", ".join(parts)


# One command


def _described(ctx: click.Context, level: int) -> Iterator[str]:
    command = ctx.command
    yield from (f"{'#' * level} {ctx.command_path}", "")
    yield from (f"    {_usage(ctx)}", "")
    yield from _prose(command.help or "")
    if rows := [*_options(ctx)]:
        yield from ("", *_table(("option", "meaning", "default"), rows))
    if command.epilog:
        yield from ("", *_prose(command.epilog))
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            if not part.hidden:
                yield from ("", *_described(click.Context(part, info_name=name, parent=ctx), level + 1))


def _usage(ctx: click.Context) -> str:
    """Like click's, with the common options by name: they are in no table."""
    own = ["[OPTIONS]"] if any(True for _ in _options(ctx)) else []
    common = [
        f"[{_record(each, ctx).rpartition(', ')[2]}]"
        for each in ctx.command.params
        if isinstance(each, click.Option) and _is_common(each)
    ]
    rest = [piece for piece in ctx.command.collect_usage_pieces(ctx) if piece != "[OPTIONS]"]
    return " ".join((ctx.command_path, *own, *common, *rest))


def _prose(text: str) -> Iterator[str]:
    """Paragraphs; what click is told not to wrap is shown as it is."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, *rest = paragraph.split("\n")[1:]
            yield from ("", *(f"    {line}".rstrip() for line in (title, *rest)), "")
        else:
            yield from (
                "",
                *textwrap.wrap(_marked(" ".join(paragraph.split())), WIDTH, break_long_words=False),
                "",
            )


def _options(ctx: click.Context) -> Iterator[tuple[str, str, str]]:
    for each in ctx.command.params:
        if isinstance(each, click.Option) and not each.hidden and not _is_common(each):
            text, default = _without_default(each.help or "")
            if each.show_default and not default:
                default = str(each.get_default(ctx))
            yield (f"`{_record(each, ctx)}`", _marked(text), default and f"`{default}`")


def _record(option: click.Option, ctx: click.Context) -> str:
    """Its names, and what it takes."""
    record = option.get_help_record(ctx)
    assert record is not None
    return re.sub(r"(INTEGER|FLOAT)( RANGE)?$", "NUMBER", record[0])


def _is_common(option: click.Option) -> bool:
    return bool(COMMON & set(option.opts)) and not (
        "--dsn" in option.opts and "PENSTOCK_DATABASE_URL" not in (option.help or "")
    )


def _without_default(text: str) -> tuple[str, str]:
    """A help text that says its default itself, at its end, apart from it."""
    said = re.search(r"\s*\[default: ([^\]]+)\]$", text)
    return (text[: said.start()], said[1]) if said else (text, "")


def _marked(text: str) -> str:
    """Options in a text as code, and nothing taken for markup."""
    parts = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(parts), 2):
        escaped = re.sub(r"([*<])", r"\\\1", parts[at])
        parts[at] = re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", escaped)
    return "".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(run())
