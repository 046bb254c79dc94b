"""The command `up`: a server, its schema, the maintenance, and what else there is, in one process."""

# ruff: noqa: PLC0415 - what a command needs is imported by it, so that --help is quick

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.dsn import resolve_dsn

from .announcing import Announcement
from .arguments import service_options
from .connection import Session, connect, with_session
from .dashboard import access_options, make_service
from .failures import Failure
from .interrupts import interrupting
from .output import Output

if TYPE_CHECKING:
    from penstock.embedded import Server
    from penstock.health import Health
    from penstock.server.services import Service

__all__ = ["up"]

# How long to wait for the end of the embedded server before the last line is printed.
STOP_SECONDS = 20.0


@click.command()
@click.option("--demo", is_flag=True, help="Feed it a living example: topics, queues and tasks of a shop.")
@click.option(
    "--migrate/--no-migrate", default=True, help="Install or upgrade the schema, or not.  [default: migrate]"
)
@click.option(
    "--dashboard/--no-dashboard",
    "with_dashboard",
    default=None,
    help="Serve the dashboard, or not.  [default: if the extra web is installed]",
)
@click.option(
    "--dashboard-host",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Where the dashboard listens.",
)
@click.option(
    "--dashboard-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="0: any free port.  [default: 8432, or any free one]",
)
@access_options
@service_options
@with_session
def up(
    session: Session,
    *,
    demo: bool,
    migrate: bool,
    with_dashboard: bool | None,
    dashboard_host: str,
    dashboard_port: int | None,
    health_port: int | None,
    health_host: str,
    log_level: str,
    **access: Any,
) -> None:
    """Run a server for development or a small box, until SIGTERM or Ctrl-C.

    Starts the embedded PostgreSQL, or takes the database that is given or set; installs or upgrades the
    schema; does the maintenance of all queues, keeps their history, and serves the dashboard. Prints what
    runs where, with --json as one object when all is up.
    """
    from penstock.health import Health, reporting

    _configure_logging(log_level, demo=demo)
    health, output = Health(), session.output
    try:
        with (
            interrupting(),
            # Before there is a child: none is to see the variables of systemd.
            reporting(health, port=health_port, host=health_host) as reported,
            _database(session.dsn, output) as (dsn, server),
        ):
            announcement = _prepare(dsn, server, migrate=migrate)
            announcement.health = reported
            pages = dict(access, host=dashboard_host, port=dashboard_port)
            if with_dashboard is None:
                with_dashboard = _has_web()
            _run(
                dsn, server, announcement, health, output, demo=demo, pages=pages if with_dashboard else None
            )
    except KeyboardInterrupt:
        output.note("Stopped.")


def _configure_logging(level: str, *, demo: bool) -> None:
    from penstock.middleware.logging import configure_logging

    configure_logging(level)
    if demo and level != "debug":
        # Handlers of the demo fail on purpose. The maintenance reports trouble with the database.
        logging.getLogger("penstock").setLevel(logging.ERROR)
        logging.getLogger("penstock.demo").setLevel(logging.CRITICAL)
        for name in ("penstock.up", "penstock.health", "penstock.dashboard"):
            logging.getLogger(name).setLevel(level.upper())


# The database


@contextlib.contextmanager
def _database(dsn: str | None, output: Output) -> Iterator[tuple[str, Server | None]]:
    """The database that is given or set, else the embedded server, for as long as the block runs."""
    resolved = resolve_dsn(dsn, os.environ)
    if resolved is not None:
        yield resolved, None
        output.note("Stopped.")
        return
    from penstock.embedded import EmbeddedError, shared
    from penstock.embedded.shared import wait_until_stopped

    with contextlib.ExitStack() as stack:
        output.note("No database given: using the embedded server.")
        try:
            server = stack.enter_context(shared())
        except EmbeddedError as exc:
            raise Failure(f"{exc} Or name a database: penstock up --dsn postgresql://...") from None
        yield server.dsn(), server
    if wait_until_stopped(server, STOP_SECONDS):
        output.note("Stopped, and the embedded server with it.")
    else:
        output.note("Stopped. The embedded server stays up: other programs use it.")


def _prepare(dsn: str, server: Server | None, *, migrate: bool) -> Announcement:
    """Install or check the schema; returns the facts to print about the database."""
    from penstock.calls import GRANT_STATISTICS
    from penstock.schema import check, install

    with connect(dsn) as connection:
        if migrate:
            done = install(connection)
            schema, was = done.after, done.before
            if server is not None:
                # The embedded server belongs to its user: the dashboard may show all sessions.
                connection.execute(GRANT_STATISTICS.encode())
            how = "" if not done.changed else "installed now" if was is None else f"was {was.package_version}"
        else:
            schema, how = check(connection), ""
        return Announcement(connection.info, schema, how, server)


# What runs


def _has_web() -> bool:
    """Whether the extra "web" is installed."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("jinja2", "starlette", "uvicorn"))


def _run(
    dsn: str,
    server: Server | None,
    announcement: Announcement,
    health: Health,
    output: Output,
    *,
    demo: bool,
    pages: dict[str, Any] | None,
) -> None:
    """pages: the options of the dashboard; None: there is none."""
    import asyncio

    async def main() -> None:
        from penstock.server.history import History
        from penstock.server.maintenance import Maintenance

        services: list[Service] = []
        if pages is not None:
            services.append(make_service(dsn, **pages))
        services += [
            Maintenance(dsn, on_away=lambda: None if server is None else _revive(server)),
            History(dsn),
        ]
        if demo:
            from penstock.demo import Demo

            services.append(Demo(dsn))
        await _Up(services, announcement, health, output).run()

    asyncio.run(main())


class _Up:
    """Runs the services, and prints when they have started and when they stop."""

    def __init__(
        self, services: list[Service], announcement: Announcement, health: Health, output: Output
    ) -> None:
        from penstock.server.services import Services

        self._services = Services(
            services, health=health, on_started=self._announce, on_signal=self._stopping
        )
        self._announcement = announcement
        self._output = output
        self._announcement.services = services

    async def run(self) -> None:
        await self._services.run()

    def _announce(self) -> None:
        self._announcement.print(self._output)

    def _stopping(self, name: str, is_first: bool) -> None:
        self._output.note(f"{name}: stopping; once more to hurry." if is_first else f"{name}: hurrying.")


def _revive(server: Server) -> None:
    """Start the embedded server if it does not run: its supervisor may have been killed with it."""
    name = "penstock embedded server"
    if any(thread.name == name for thread in threading.enumerate()):
        return

    def start() -> None:
        from penstock.embedded import EmbeddedError

        # The maintenance reports the trouble, and calls this again.
        with contextlib.suppress(EmbeddedError):
            server.start()

    # A daemon: the process must not wait for it when it ends.
    threading.Thread(target=start, name=name, daemon=True).start()
