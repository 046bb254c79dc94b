"""The command `penstock`: data goes to stdout, all else to stderr; exit 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import click

from penstock import __version__

from .periodic import periodic
from .schema import migrate, sql, version
from .worker import worker

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="penstock %(version)s")
def main() -> None:
    """Message queues and task queues inside PostgreSQL."""


main.add_command(migrate)
main.add_command(periodic)
main.add_command(sql)
main.add_command(version)
main.add_command(worker)
