"""The command without a process of its own: quick, where a table of mistakes is to be tried."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping

from click.testing import CliRunner

from penstock.cli import main

from .command import PATIENCE, Answer, Command


class Inside:
    """`penstock` in this process, called and answering as Command does. It has no terminal and no signals."""

    def __init__(self, command: Command) -> None:
        self._command = command

    def __call__(
        self, *arguments: str, stdin: str | bytes = b"", environ: Mapping[str, str] | None = None
    ) -> Answer:
        runner = CliRunner(env=self._command.environment(environ))
        result = runner.invoke(main, list(arguments), input=stdin, prog_name="penstock")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        done = subprocess.CompletedProcess(
            arguments, result.exit_code, result.stdout_bytes, result.stderr_bytes
        )
        return Answer(done)


# They read from stdin, or end with a signal.
READING = {"consume", "--raw", "--lines"}


class Quick(Command):
    """Runs within this process what needs neither stdin, signals, a terminal nor other variables."""

    def __call__(
        self,
        *arguments: str,
        stdin: str | bytes = b"",
        environ: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> Answer:
        if stdin or environ or READING.intersection(arguments):
            return super().__call__(*arguments, stdin=stdin, environ=environ, timeout=timeout)
        with contextlib.chdir(self.folder):
            return Inside(self)(*arguments)
