"""Message queues and task queues inside PostgreSQL."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("penstock")
