"""The worker: claims messages of task queues, runs their handlers, and settles the messages."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["Worker"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: penstock.worker.errors alone does not need the whole worker.
    if name in __all__:
        value = globals()[name] = getattr(import_module(".worker", __name__), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
