"""The command `dashboard`: the web pages of a database, served alone."""

# ruff: noqa: PLC0415 - what a command needs is imported by it, so that --help is quick

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .connection import Session, with_session
from .failures import Failure
from .interrupts import interrupting

if TYPE_CHECKING:
    from penstock.dashboard import DashboardService

__all__ = ["access_options", "dashboard", "make_service"]

SECRETS = ("PENSTOCK_DASHBOARD_TOKEN", "PENSTOCK_DASHBOARD_VIEW_TOKEN", "PENSTOCK_DASHBOARD_BASIC")
Command = TypeVar("Command", bound=Callable[..., Any])


def access_options(command: Command) -> Command:
    """Who may see and do what on the pages; the same for `dashboard` and `up`."""
    for option in reversed(
        (
            click.option(
                "--read-only", is_flag=True, help="Show only: open no connection that could change anything."
            ),
            click.option(
                "--token",
                metavar="TOKEN",
                envvar="PENSTOCK_DASHBOARD_TOKEN",
                show_envvar=True,
                help="Ask for this token, which may do everything.",
            ),
            click.option(
                "--view-token",
                metavar="TOKEN",
                envvar="PENSTOCK_DASHBOARD_VIEW_TOKEN",
                show_envvar=True,
                help="Ask for a token; this one may look only.",
            ),
            click.option(
                "--basic",
                metavar="USER:PASSWORD",
                envvar="PENSTOCK_DASHBOARD_BASIC",
                show_envvar=True,
                help="Ask for this user and password.",
            ),
            click.option(
                "--viewer-dsn",
                metavar="DSN",
                help="Where pages read from: a role that is a member of penstock_viewer only.  "
                "[default: the database, as penstock_viewer]",
            ),
            click.option(
                "--redact",
                metavar="PATTERN",
                multiple=True,
                help="Hide the values of payload keys that match this regular expression; may be given more "
                "than once. An empty one hides nothing.  [default: passwords, secrets, tokens and such]",
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="0: any free port.  [default: 8432, or any free one]",
)
@click.option("--root-path", metavar="PATH", default="", help="The prefix that a proxy in front removes.")
@access_options
@with_session
def dashboard(session: Session, *, host: str, port: int | None, root_path: str, **options: Any) -> None:
    """Serve the dashboard of a database, until SIGTERM or Ctrl-C.

    Without a token or a user it listens on this machine only. Its address also answers probes: /livez,
    /readyz.
    """
    import asyncio

    from penstock.health import Health, reporting
    from penstock.middleware.logging import configure_logging
    from penstock.server.services import Services

    configure_logging("info")
    health = Health()

    async def main() -> None:
        service = make_service(session.dsn, host=host, port=port, root_path=root_path, **options)

        def announce() -> None:
            if session.as_json:
                session.output.json({"url": service.url})
            else:
                session.output.line(f"The dashboard is at {service.url}")

        await Services(
            [service],
            health=health,
            on_started=announce,
            on_signal=lambda name, is_first: session.output.note(
                f"{name}: {'stopping' if is_first else 'hurrying'}."
            ),
        ).run()

    with interrupting(), reporting(health):
        asyncio.run(main())


def make_service(
    dsn: str | None,
    *,
    token: str | None = None,
    view_token: str | None = None,
    basic: str | None = None,
    redact: tuple[str, ...] = (),
    **options: Any,
) -> DashboardService:
    """The service for the options of a command."""
    try:
        from penstock.dashboard import Access, Basic, DashboardService, Permission, Tokens
    except ImportError as exc:
        raise Failure(str(exc)) from None
    for variable in SECRETS:
        # Else the dashboard would be open, because the secret that was to fill the variable is missing.
        if os.environ.get(variable) == "":
            raise click.UsageError(f"{variable} is set, but empty: give it a value, or unset it")
    if "" in (token, view_token):
        raise click.UsageError("a token must not be empty")
    if token is not None and token == view_token:
        raise click.UsageError("--token and --view-token must differ")
    tokens = {}
    if token:
        tokens[token] = Access("token", Permission.ADMINISTER)
    if view_token:
        tokens[view_token] = Access("view token", Permission.VIEW)
    if tokens and basic:
        raise click.UsageError("give a token or a user, not both")
    if tokens:
        options["authenticate"] = Tokens(tokens)
    elif basic:
        user, colon, password = basic.partition(":")
        if not (user and colon and password):
            raise click.UsageError("--basic takes USER:PASSWORD")
        options["authenticate"] = Basic({user: (password, Permission.ADMINISTER)})
    if redact:
        options["redact"] = tuple(pattern for pattern in redact if pattern)
    return DashboardService(dsn, **options)
