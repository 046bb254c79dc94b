"""The options of the dashboard."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import InvalidArgument

from .access import Authenticate, Authenticator
from .redaction import DEFAULT_PATTERNS

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the dashboard behaves.

    authenticate: `Tokens`, `Basic`, or a callable of the host application that takes the request and returns
    an `Access`, or None for a stranger; it may be awaitable. Without it only this machine is answered.
    read_only: no action is possible, and there is no connection that could do one. viewer_dsn: where pages
    read from; else the database itself, as penstock_viewer. redact: patterns of payload keys whose values are
    not shown. secret: what protects forms; the same for all processes that serve one dashboard. hosts: names
    besides localhost that it is reached by without authentication.
    """

    authenticate: Authenticate | Authenticator | None = None
    read_only: bool = False
    viewer_dsn: str | None = None
    redact: Sequence[str] = DEFAULT_PATTERNS
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    hosts: Sequence[str] = ()
    title: str = "Penstock"
    viewer_connections: int = 4
    action_connections: int = 4

    def __post_init__(self) -> None:
        if not self.secret:
            raise InvalidArgument("secret must not be empty: anyone could make the tokens of forms")
