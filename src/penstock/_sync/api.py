# Written by tools/unasync.py from src/penstock/_async/api.py:
# change that, run `make generate`.

"""Every function of the schema as a method with the same verb."""

from __future__ import annotations

from .administration import Administration
from .consuming import Consuming
from .diagnosing import Diagnosing
from .operating import Operating
from .publishing import Publishing
from .tasks import Tasks

__all__ = ["Api"]


class Api(Publishing, Consuming, Administration, Operating, Diagnosing, Tasks):
    """All calls, over a client or a transaction."""
