"""A group of commands whose modules are imported when they are called: `penstock --help` is quick."""

from __future__ import annotations

import errno
import io
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .failures import FAILED, as_failure
from .hiding import run_hidden
from .output import STDOUT, give_up, give_up_if_stuck

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["Entry", "LazyGroup"]


# A full disk, a terminal that is gone. (A reader that is gone, click knows itself.)
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


class Entry(NamedTuple):
    """A command: under which heading it is listed, where it is, and its line in the list."""

    heading: str
    module: str
    help: str


class LazyGroup(click.Group):
    """Knows its commands by a table. What one of them raises becomes a line on stderr and an exit code."""

    def __init__(self, *arguments: Any, entries: dict[str, Entry], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f".{entry.module}", __package__)
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading in dict.fromkeys(entry.heading for entry in self.entries.values()):
            with formatter.section(heading):
                formatter.write_dl(
                    [(name, entry.help) for name, entry in self.entries.items() if entry.heading == heading]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for a press of TAB only

        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(self, *arguments: Any, **options: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            # A name that the encoding of this terminal does not have is no reason to fail.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        if not arguments and "args" not in options:
            run_hidden()
        try:
            return super().main(*arguments, **options)
        except OSError as exc:
            if exc.errno not in CANNOT_WRITE:
                raise
            give_up(STDOUT)
            click.echo(f"Error: cannot write to stdout: {exc.strerror}", err=True)
            sys.exit(FAILED)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as exc:
            failure = as_failure(exc)
            if failure is None:
                raise
            if isinstance(exc, KeyboardInterrupt):
                give_up_if_stuck(STDOUT)
        raise failure

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from difflib import get_close_matches  # noqa: PLC0415 - for typing errors only

            near = get_close_matches(args[0], self.list_commands(ctx), 1)
            if not near or near[0] in exc.message:
                raise
            raise click.UsageError(f"{exc.message} Did you mean {near[0]!r}?", ctx) from None
