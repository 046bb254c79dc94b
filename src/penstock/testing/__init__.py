"""For tests of programs that use Penstock: a throwaway database, tasks that run on demand, a movable clock.

With pytest, all of this is available as fixtures: see penstock.testing.plugin.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import Clock
    from .draining import DrainError, Ran
    from .pending import Dead, Enqueued
    from .servers import DatabaseServer, database, server
    from .tester import TaskTester

__all__ = [
    "Clock",
    "DatabaseServer",
    "Dead",
    "DrainError",
    "Enqueued",
    "Ran",
    "TaskTester",
    "database",
    "server",
]

# The server for databases of tests: the DSN of any of its databases.
VARIABLE = "PENSTOCK_TEST_DATABASE_URL"

# Imported at the first use, because the plugin is part of every pytest run where Penstock is installed.
_HOMES = {
    ".clock": ("Clock",),
    ".draining": ("DrainError", "Ran"),
    ".pending": ("Dead", "Enqueued"),
    ".servers": ("DatabaseServer", "database", "server"),
    ".tester": ("TaskTester",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home, __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
