"""The command that prints a shell's completion script, and the names that it completes."""

# ruff: noqa: PLC0415 - psycopg is imported when a name is asked for

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock._sync.api import Api

__all__ = ["completion", "queue_names", "schedule_names", "topic_names"]

# Somebody has pressed a key and waits.
PATIENCE_SECONDS = 1
MOST_NAMES = 1000

HOW = {
    "bash": "penstock completion bash > ~/.local/share/bash-completion/completions/penstock",
    "zsh": 'penstock completion zsh > "${fpath[1]}/_penstock"',
    "fish": "penstock completion fish > ~/.config/fish/completions/penstock.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(HOW)), required=False)
def completion(shell: str | None) -> None:
    """Print the completion script for a shell: by default that of SHELL.

    \b
    bash: penstock completion bash > ~/.local/share/bash-completion/completions/penstock
    zsh:  penstock completion zsh > "${fpath[1]}/_penstock"
    fish: penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from click.shell_completion import get_completion_class

    from . import main

    name = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - a name, not a path
    found = get_completion_class(name) if name in HOW else None
    if found is None:
        raise click.UsageError(f"say for which shell: {', '.join(HOW)}")
    click.echo(found(main, {}, "penstock", "_PENSTOCK_COMPLETE").source())


def queue_names(ctx: click.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda queue: [found.name for found in queue.list_queues()])


def topic_names(ctx: click.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda queue: [found.name for found in queue.list_topics()])


def schedule_names(ctx: click.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda queue: [found.name for found in queue.list_schedules()])


def _names(ctx: click.Context, incomplete: str, names_of: Callable[[Api], list[str]]) -> list[str]:
    """Names that begin like this; none where the database does not answer: nobody asked for an error."""
    from penstock.settings import resolve_dsn

    try:
        dsn = resolve_dsn(ctx.params.get("dsn"), os.environ)
        if dsn is None:
            return []
        return [name for name in _all_names(dsn, names_of) if name.startswith(incomplete)][:MOST_NAMES]
    except Exception:
        return []


def _all_names(dsn: str, names_of: Callable[[Api], list[str]]) -> list[str]:
    import psycopg

    from penstock._sync.client import Client
    from penstock.conninfo import complete

    options: dict[str, Any] = {"connect_timeout": PATIENCE_SECONDS, "autocommit": True}
    with psycopg.connect(complete(dsn), **options) as connection:
        connection.execute(f"set statement_timeout = '{PATIENCE_SECONDS}s'")
        return names_of(Client(dsn).using(connection))
