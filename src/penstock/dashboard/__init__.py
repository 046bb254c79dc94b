"""The dashboard: pages, a JSON API, live updates and metrics of the queues, as an ASGI app.

`asgi()` makes the app. Users mount it in theirs under any prefix; `penstock dashboard` and `penstock up`
serve it with `DashboardService`. It needs the extra "web".
"""

from __future__ import annotations

try:
    import jinja2 as _jinja2
    import starlette as _starlette
    import uvicorn as _uvicorn
except ImportError as exc:  # pragma: no cover - the tests have the extra
    raise ImportError("penstock.dashboard needs the extra web: pip install 'penstock[web]'") from exc

from .access import Access, Basic, Permission, Tokens
from .application import Dashboard, asgi
from .service import DashboardService

del _jinja2, _starlette, _uvicorn

__all__ = ["Access", "Basic", "Dashboard", "DashboardService", "Permission", "Tokens", "asgi"]
