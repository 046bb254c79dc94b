"""Every function of the schema as a method with the same verb."""

from __future__ import annotations

from .administration import AsyncAdministration
from .consuming import AsyncConsuming
from .diagnosing import AsyncDiagnosing
from .operating import AsyncOperating
from .publishing import AsyncPublishing
from .tasks import AsyncTasks

__all__ = ["AsyncApi"]


class AsyncApi(
    AsyncPublishing, AsyncConsuming, AsyncAdministration, AsyncOperating, AsyncDiagnosing, AsyncTasks
):
    """All calls, over a client or a transaction."""
