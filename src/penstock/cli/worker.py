"""The command that runs tasks: worker."""

# ruff: noqa: PLC0415 - what a command needs is imported by it, so that --help is quick

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import logging
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .arguments import complete_queue, service_options
from .connection import listen_dsn_option
from .failures import FAILED, Failure, as_failure, is_lasting
from .hiding import hide

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.worker.worker import Worker

__all__ = ["worker"]

logger = logging.getLogger("penstock.worker")

MISSING = object()


@click.command()
@click.argument("app")
@click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    shell_complete=complete_queue,
    help="Work for this queue only; may be repeated.",
)
@click.option(
    "--concurrency", "-c", type=click.IntRange(1), default=100, show_default=True, help="Async tasks at once."
)
@click.option("--threads", type=click.IntRange(1), help="Tasks in threads at once.  [default: 4 a core]")
@click.option(
    "--cpu-processes",
    type=click.IntRange(1),
    help="Tasks in processes of their own at once.  [default: 1 a core]",
)
@click.option(
    "--processes", "-p", type=click.IntRange(1), default=1, show_default=True, help="Workers side by side."
)
@click.option(
    "--lease",
    type=click.FloatRange(1),
    default=30,
    show_default=True,
    help="Seconds after which the tasks of a lost worker run elsewhere.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    help="Seconds that tasks have to end when the worker stops.",
)
@click.option(
    "--call-timeout",
    type=click.FloatRange(0, min_open=True),
    help="Seconds that the database may be silent over a call.  [default: the app's, 30]",
)
@click.option("--dsn", metavar="DSN", help="The database, instead of the app's own.")
@listen_dsn_option
@service_options
@click.option("--json", "as_json", is_flag=True, help="Log lines of JSON.")
def worker(  # noqa: PLR0917 - one for each option
    app: str,
    queues: tuple[str, ...],
    concurrency: int,
    threads: int | None,
    cpu_processes: int | None,
    processes: int,
    lease: float,
    grace: float,
    call_timeout: float | None,
    health_port: int | None,
    health_host: str,
    dsn: str | None,
    listen_dsn: str | None,
    log_level: str,
    as_json: bool,
) -> None:
    """Run the tasks of an app, until SIGTERM or Ctrl-C.

    APP is module:name, or the module if it has one app only.

    The first signal: no new tasks, those that run have the grace time to end, and what never began is given
    back. The second: abort.
    """
    from penstock.errors import PenstockError
    from penstock.health import Health, reporting
    from penstock.middleware.logging import configure_logging
    from penstock.worker.supervisor import MISCONFIGURED, Supervisor, is_supervised, watch_parent

    health = Health()
    try:
        # First of all: what the app starts when it is imported must not speak to systemd in our name.
        with reporting(health, port=None if is_supervised() else health_port, host=health_host) as reported:
            # Then the app: it may set up logging itself.
            found = find_app(app)
            # dictConfig() disables what is there already, unless it is told not to: ours came before.
            for name in ("penstock.health", "penstock.worker"):
                logging.getLogger(name).disabled = False
            configure_logging(log_level, as_json=as_json)
            from penstock.worker.worker import Worker

            if reported.port is not None:
                logger.info("health on %s", reported.url)
            # A watchdog ends a process that hangs with SIGABRT: then it says where.
            with suppress(RuntimeError, OSError):
                faulthandler.enable()
            if dsn is not None or listen_dsn is not None:
                found.use(found.clients.dsn if dsn is None else dsn, listen_dsn=listen_dsn)
            if call_timeout is not None:
                found.clients.call_timeout = call_timeout
            one = Worker(
                found,
                queues=queues or None,
                concurrency=concurrency,
                threads=threads,
                processes=cpu_processes,
                lease=lease,
                grace=grace,
                health=health,
            )
            if processes > 1:
                arguments, environ = hide(sys.argv[1:])
                supervisor = Supervisor(
                    processes, arguments, environ=environ, grace=grace, lease=lease, health=health
                )
                sys.exit(supervisor.run())
            watch_parent(one.stop_from_anywhere)
            # What is there now stays: the collector need not look at it again and again.
            gc.freeze()
            gc.set_threshold(10_000)
            code = _run(one)
    except PenstockError as exc:
        # Refused before it has begun: to begin again would not help.
        failure = as_failure(exc)
        assert failure is not None
        raise Failure(failure.message, MISCONFIGURED if is_supervised() else failure.exit_code) from None
    # What others want to send at the end: spans, events.
    atexit._run_exitfuncs()
    with suppress(Exception):
        sys.stdout.flush()
    logging.shutdown()
    # Threads that did not end in time must not keep the process, however the worker ended.
    os._exit(code)


def _run(worker: Worker) -> int:
    """Work until it ends; the exit code."""
    from penstock.worker.supervisor import MISCONFIGURED, is_supervised

    try:
        return 0 if worker.run_forever() else FAILED
    except Exception as exc:
        failure = as_failure(exc)
        if failure is None:
            traceback.print_exc()
            return FAILED
        failure.show()
        return MISCONFIGURED if is_supervised() and is_lasting(exc) else failure.exit_code


def find_app(reference: str) -> App:
    """The app that module:name stands for."""
    from penstock.tasks.app import App

    module_name, _, name = reference.partition(":")
    if not module_name:
        raise click.UsageError(f"APP is module:name, not {reference!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise
        raise click.UsageError(f"there is no module {exc.name!r} here: {Path.cwd()}") from None
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    shown = ", ".join(f"{module_name}:{key}" for key in apps)
    there = f"its apps are {shown}" if apps else f"there is no penstock.App in {module.__file__}"
    if name in apps:
        return apps[name]
    if name:
        found = getattr(module, name, MISSING)
        if isinstance(found, App):
            return found
        fault = "has no attribute" if found is MISSING else f"has a {type(found).__name__}, not an app, as"
        raise click.UsageError(f"module {module_name!r} {fault} {name!r}: {there}")
    if len({id(value) for value in apps.values()}) == 1:
        return next(iter(apps.values()))
    fault = f"has {len(apps)} apps, say which" if apps else "has no app"
    raise click.UsageError(f"module {module_name!r} {fault}: {there}")
