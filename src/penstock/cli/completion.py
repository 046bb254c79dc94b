"""The command that prints a shell's completion script, and the names that it completes."""

# ruff: noqa: PLC0415 - psycopg is imported when a name is asked for

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from penstock._sync.api import Api

__all__ = ["completion", "queue_names", "schedule_names", "topic_names"]

# The user has pressed a key and waits.
PATIENCE_SECONDS = 2.0
MOST_NAMES = 1000

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Print the completion script for a shell: by default that of SHELL.

    It completes commands, options, and the names of queues, topics and schedules, of the database that is
    set or of the embedded server if that is up.

    \b
    To try it in this shell, bash or zsh:
      eval "$(penstock completion)"
    For good:
      penstock completion bash > ~/.local/share/bash-completion/completions/penstock
      penstock completion zsh > "${fpath[1]}/_penstock"
      penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from click.shell_completion import get_completion_class

    from . import main

    name = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - a name, not a path
    found = get_completion_class(name) if name in SHELLS else None
    if found is None:
        raise click.UsageError(f"say for which shell: {', '.join(SHELLS)}")
    click.echo(found(main, {}, "penstock", "_PENSTOCK_COMPLETE").source())


def queue_names(ctx: click.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda queue: [found.name for found in queue.list_queues()])


def topic_names(ctx: click.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda queue: [found.name for found in queue.list_topics()])


def schedule_names(ctx: click.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda queue: [found.name for found in queue.list_schedules()])


def _names(ctx: click.Context, incomplete: str, names_of: Callable[[Api], list[str]]) -> list[str]:
    """Names that begin like this; none where the database does not answer soon."""
    from shlex import quote

    with suppress(Exception):
        dsn = _dsn(ctx.params.get("dsn"))
        found = [] if dsn is None else _all_names(dsn, names_of)
        # A shell would take others apart: those have to be typed, and quoted.
        return [name for name in found if name.startswith(incomplete) and name == quote(name)][:MOST_NAMES]
    return []


def _dsn(given: str | None) -> str | None:
    from penstock.dsn import resolve_dsn

    dsn = resolve_dsn(given, os.environ)
    if dsn is not None:
        return dsn
    from penstock.embedded import find_shared

    # If it is up: it is not started by the press of a key.
    server = find_shared()
    return None if server is None else server.dsn()


def _all_names(dsn: str, names_of: Callable[[Api], list[str]]) -> list[str]:
    from threading import Thread

    import psycopg

    from penstock._sync.client import Client
    from penstock.dsn import complete

    found: list[str] = []

    def ask() -> None:
        with suppress(Exception), psycopg.connect(complete(dsn), autocommit=True) as connection:
            found.extend(names_of(Client(dsn).using(connection)))

    # A thread that is left alone: looking up the name of a host knows no time limit.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    return found
