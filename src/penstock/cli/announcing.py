"""What `penstock up` says when all is up: what runs where, how to get there, and what to type next."""

# ruff: noqa: PLC0415 - rich is imported where there is a terminal to print to

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import __version__

from .output import Output, is_terminal

if TYPE_CHECKING:
    import psycopg

    from penstock.embedded import Server
    from penstock.health import Reporting
    from penstock.schema import SchemaVersion
    from penstock.server.services import Service

__all__ = ["Announcement"]

EXPORT = "export PENSTOCK_DATABASE_URL="
# Where there is something to see, and where there is nothing yet.
NEXT = (
    ("penstock top", "watch the queues, live"),
    ("penstock queue list", "what is in them"),
    ("penstock dlq list", "what failed for good"),
    ("penstock doctor", "is all well?"),
)
FIRST = (
    ("penstock queue create hello", "a queue"),
    ("penstock send hello '{\"n\": 1}'", "a message into it"),
    ("penstock consume hello --ack", "and out again"),
    ("penstock top", "watch the queues, live"),
)


def _callable(command: str) -> str:
    """A command as it can be typed here: with its path where the shell would not find it."""
    name = command.partition(" ")[0]
    path = Path(sys.argv[0])
    if shutil.which(name) is not None or path.name != name:
        return command
    with suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    return f"{path}{command.removeprefix(name)}"


# A line is made of pieces, each with its style.
Line = list[tuple[str, str]]


class Announcement:
    """All facts to print, without passwords."""

    def __init__(
        self, info: psycopg.ConnectionInfo, schema: SchemaVersion, how: str, server: Server | None
    ) -> None:
        self._version = _version(info.server_version)
        self._place: dict[str, str | int] = {
            "host": info.host,
            "port": info.port,
            "dbname": info.dbname,
            "user": info.user,
        }
        self._schema = schema
        self._how = how
        self._server = server
        self.health: Reporting | None = None
        self.services: Sequence[Service] = ()

    def print(self, output: Output) -> None:
        if output.as_json:
            output.json(self.facts())
        elif is_terminal():
            _print_rich(self.lines())
        else:
            for line in self.lines():
                output.line("".join(text for text, _ in line))

    # For a program

    def facts(self) -> dict[str, Any]:
        from psycopg.conninfo import make_conninfo

        server = self._server
        about: dict[str, Any] = {
            "version": __version__,
            "pid": os.getpid(),
            "dsn": make_conninfo("", **self._place) if server is None else server.dsn(),
            "postgresql": self._version,
            "schema": self._schema.package_version,
            "migration": self._schema.migration,
            "embedded": None,
            "services": {service.name: service.where for service in self.services},
            "health": self._health_url(),
        }
        if server is not None:
            about["embedded"] = {
                "data_directory": str(server.data_directory),
                "log_file": str(server.log_file),
                "tcp_dsn": self._tcp_dsn(""),
                "password_file": str(server.password_file),
            }
        return about

    # For a person

    def lines(self) -> Iterator[Line]:
        yield [(f"Penstock {__version__} is up.", "bold green")]
        yield []
        rows = list(self._rows())
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            yield [(f"  {name.ljust(width)}  ", "dim"), (value, "")]
        yield []
        yield from self._way()
        yield []
        yield [("Try, in another terminal:", "")]
        yield []
        commands = [(_callable(command), what) for command, what in (NEXT if self._has("demo") else FIRST)]
        width = max(len(command) for command, _ in commands)
        for command, what in commands:
            yield [(f"  {command.ljust(width)}", "cyan"), (f"   {what}", "dim")]
        yield []
        yield [("Ctrl-C stops it.", "")]

    def _has(self, name: str) -> bool:
        return any(service.name == name for service in self.services)

    def _rows(self) -> Iterator[tuple[str, str]]:
        for service in self.services:
            if service.name == "dashboard":
                yield service.name, service.where
        if self._server is None:
            place = "{user}@{host}:{port}/{dbname}".format(**self._place)
            yield "PostgreSQL", f"{self._version}, {place}"
        else:
            yield "PostgreSQL", f"{self._version}, embedded"
            yield "data", _short(self._server.data_directory)
            yield "log", _short(self._server.log_file)
        yield "schema", self._schema.package_version + (f", {self._how}" if self._how else "")
        for service in self.services:
            if service.name != "dashboard":
                yield service.name, service.where
        if (url := self._health_url()) is not None:
            yield "health", f"{url}/livez and /readyz"

    def _way(self) -> Iterator[Line]:
        """How others get there."""
        if self._server is None:
            yield [("Other commands find it by the same --dsn, or by PENSTOCK_DATABASE_URL.", "")]
            return
        yield [("Any `penstock` command that you type finds this server by itself. For your programs:", "")]
        yield []
        yield [(f"  {EXPORT}{shlex.quote(self._server.dsn())}", "cyan")]
        yield []
        yield [("or over TCP, with the password that lies in a file:", "")]
        yield []
        password = f":$(cat {shlex.quote(str(self._server.password_file))})"
        yield [(f'  {EXPORT}"{self._tcp_dsn(password)}"', "cyan")]

    def _tcp_dsn(self, password: str) -> str:
        return "postgresql://{user}{password}@127.0.0.1:{port}/{dbname}".format(
            **self._place, password=password
        )

    def _health_url(self) -> str | None:
        return None if self.health is None or self.health.port is None else self.health.url


def _print_rich(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        # A line that is to be pasted must not be broken.
        console.print(Text.assemble(*line), soft_wrap=True)


def _version(number: int) -> str:
    """18.1, of 180001."""
    return f"{number // 10000}.{number % 10000}"


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
