"""Keeps passwords off the command line, which every user of the machine can read in `ps`.

A command that was given a DSN with a password runs itself once more, with `***` in its place. The DSN goes
through the environment, which only the same user can read, and is taken out of there at once.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import suppress

__all__ = ["hide", "restore", "run_hidden"]

OPTIONS = ("--dsn", "--listen-dsn")
HIDDEN = "***"
# A list of what stands for each `***`, in order.
VARIABLE = "PENSTOCK_HIDDEN_ARGUMENTS"
# More than is one, and none that is one: it may be written wrongly.
SUSPICIOUS = re.compile(r":.*@|pass|secret|key", re.IGNORECASE | re.DOTALL)


def hide(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments of a command without passwords, and the environment that it needs in their place."""
    shown, hidden = list[str](), list[str]()
    is_value = False
    for number, argument in enumerate(arguments):
        if argument == "--":
            shown += arguments[number:]
            break
        option, equals, value = argument.partition("=")
        if is_value and _is_suspicious(argument):
            hidden.append(argument)
            shown.append(HIDDEN)
        elif not is_value and equals and option in OPTIONS and _is_suspicious(value):
            hidden.append(value)
            shown += [option, HIDDEN]
        else:
            shown.append(argument)
        is_value = not is_value and argument in OPTIONS
    return shown, {VARIABLE: json.dumps(hidden)} if hidden else {}


def restore(arguments: Sequence[str], environ: MutableMapping[str, str]) -> list[str]:
    """The arguments with their passwords, which are taken out of the environment."""
    hidden = iter(json.loads(environ.pop(VARIABLE, "[]")))
    found = list(arguments)
    for number, argument in enumerate(found):
        if argument == HIDDEN and number and found[number - 1] in OPTIONS:
            found[number] = next(hidden, HIDDEN)
    return found


def run_hidden() -> None:
    """Run this command without the passwords on its command line, if there are any; this process goes on."""
    if VARIABLE in os.environ:
        sys.argv[1:] = restore(sys.argv[1:], os.environ)
        return
    arguments, environ = hide(sys.argv[1:])
    end = len(sys.orig_argv) - len(sys.argv) + 1
    if environ and sys.orig_argv[end:] == sys.argv[1:] and sys.executable and os.name == "posix":
        # If it cannot be run once more, it runs as it is.
        with suppress(OSError):
            command = [sys.executable, *sys.orig_argv[1:end], *arguments]
            os.execve(sys.executable, command, {**os.environ, **environ})  # noqa: S606


def _is_suspicious(dsn: str) -> bool:
    return SUSPICIOUS.search(dsn.partition("://")[2] or dsn) is not None
