"""For the tests of those who use Penstock: a throwaway database, tasks that run on demand, a clock to move.

With pytest, all of it is there as fixtures: see penstock.testing.plugin.
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

# The server that databases for tests are made on; any database of it.
VARIABLE = "PENSTOCK_TEST_DATABASE_URL"

# Loaded when first asked for: the plugin is part of every run of pytest where Penstock is installed.
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
