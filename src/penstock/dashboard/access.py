"""Who may see and do what: authentication, permissions, and the guard of requests that change things.

Without any authentication only requests of this machine are answered. The Host header is checked, too: a name
that an attacker points at 127.0.0.1 must not lead a browser here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from http.cookies import CookieError, SimpleCookie
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import Request

from penstock.errors import InvalidArgument
from penstock.wording import shown

__all__ = [
    "ANYONE_HERE",
    "CSRF_FIELD",
    "SESSION_COOKIE",
    "SESSION_SECONDS",
    "Access",
    "Authenticate",
    "Authenticator",
    "Basic",
    "Guard",
    "Permission",
    "Refusal",
    "Tokens",
    "is_loopback",
]

logger = logging.getLogger("penstock.dashboard")

SESSION_COOKIE = "penstock_session"
SESSION_SECONDS = 30 * 86400
# What proxies add to a request of someone else.
FORWARDED = ("x-forwarded-", "forwarded", "x-real-ip", "via")
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf_token"


class Permission(IntEnum):
    """What a viewer may do. Each permission includes those before it."""

    VIEW = 1
    ACT = 2
    ADMINISTER = 3


@dataclass(frozen=True, slots=True)
class Access:
    """Who it is, for the audit, and what they may do.

    is_ambient: the browser sends the proof by itself (a cookie, basic authentication), so a page of another
    site could make it act.
    """

    name: str
    permission: Permission = Permission.VIEW
    is_ambient: bool = True

    def __post_init__(self) -> None:
        # The audit needs a name, and has room for so long a one.
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= 255:
            raise InvalidArgument(f"name must have 1 to 255 characters, not {shown(self.name)}")
        if not isinstance(self.permission, Permission):
            raise InvalidArgument(f"permission must be a Permission, not {shown(self.permission)}")

    def may(self, needed: Permission) -> bool:
        return self.permission >= needed


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """A request that is not answered: its status, and why, for a person."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.headers = dict(headers or {})


# What the host application gives: the request in, who it is out; None: not known.
Authenticate: TypeAlias = Callable[[Request], "Access | Awaitable[Access | None] | None"]

ANYONE_HERE = Access("local", Permission.ADMINISTER)


class Authenticator(Protocol):
    """A kind of authentication that the dashboard brings along."""

    def __call__(self, request: Request) -> Access | None: ...

    def challenge(self) -> Refusal:
        """What to answer a request of an unknown viewer."""


class Tokens:
    """A token opens the dashboard: as `Authorization: Bearer`, or once in a page, which leaves a cookie.

    tokens: each token with its access; or one token, which may administer.
    """

    def __init__(self, tokens: str | Mapping[str, Access]) -> None:
        given = {tokens: Access("token", Permission.ADMINISTER)} if isinstance(tokens, str) else dict(tokens)
        if not given or not all(given):
            raise InvalidArgument("a token must not be empty")
        self._tokens = given

    def __call__(self, request: Request) -> Access | None:
        scheme, _, token = _authorization(request).partition(" ")
        if scheme.lower() == "bearer" and (found := self.find(token.strip())) is not None:
            return Access(found.name, found.permission, is_ambient=False)
        return self._find_session(_cookie(request, SESSION_COOKIE))

    def find(self, token: str) -> Access | None:
        return self._look_up("token", _digest(token, "token"))

    def session(self, token: str) -> str:
        """The value of the cookie for a token. It does not reveal the token, and it ends."""
        end = str(int(time.time()) + SESSION_SECONDS)
        return f"{end}.{_digest(token, f'session until {end}')}"

    def _find_session(self, cookie: str) -> Access | None:
        end, _, digest = cookie.partition(".")
        if not end.isdecimal() or len(end) > 12 or int(end) < time.time():
            return None
        return self._look_up(f"session until {end}", digest)

    def _look_up(self, purpose: str, digest: str) -> Access | None:
        """Compares with each, in constant time: how long it takes tells nothing."""
        found = None
        for token, access in self._tokens.items():
            if hmac.compare_digest(_digest(token, purpose).encode(), digest.encode("utf-8", "replace")):
                found = access
        return found

    def challenge(self) -> Refusal:
        return Refusal(401, "This dashboard asks for a token.", {"WWW-Authenticate": "Bearer"})


class Basic:
    """User names and passwords, which browsers ask for by themselves.

    users: each name with its password and permission.
    """

    def __init__(self, users: Mapping[str, tuple[str, Permission]]) -> None:
        if not users or not all(password for password, _ in users.values()):
            raise InvalidArgument("a password must not be empty")
        self._users = dict(users)

    def __call__(self, request: Request) -> Access | None:
        scheme, _, encoded = _authorization(request).partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        expected, permission = self._users.get(name, ("", Permission.VIEW))
        if expected and hmac.compare_digest(expected.encode(), password.encode()):
            return Access(name, permission)
        return None

    def challenge(self) -> Refusal:
        headers = {"WWW-Authenticate": 'Basic realm="Penstock", charset="UTF-8"'}
        return Refusal(401, "This dashboard asks for a user name and a password.", headers)


class Guard:
    """Decides who a request is from, and whether a request that changes things was made by a page of ours.

    hosts: further names that the dashboard is reached by without authentication; the Host header must be one.
    secret: what CSRF tokens are derived from.
    """

    def __init__(
        self, authenticate: Authenticate | Authenticator | None, *, secret: bytes, hosts: Iterable[str]
    ) -> None:
        self._authenticate = authenticate
        self._secret = secret
        self._hosts = frozenset(host.lower() for host in hosts)

    @property
    def tokens(self) -> Tokens | None:
        return self._authenticate if isinstance(self._authenticate, Tokens) else None

    @property
    def is_open(self) -> bool:
        """Whether the dashboard asks for no proof, and so answers this machine only."""
        return self._authenticate is None

    async def identify(self, request: Request) -> Access:
        if self._authenticate is None:
            self._check_local(request)
            return ANYONE_HERE
        try:
            found: Any = self._authenticate(request)
            if isinstance(found, Awaitable):
                found = await found
        except Exception:
            # Whatever it says is for the log of the host, not for a stranger.
            logger.exception("the callable that authenticates failed")
            raise Refusal(500, "Who you are could not be found out. The log has the reason.") from None
        if isinstance(found, Access):
            return found
        challenge = getattr(self._authenticate, "challenge", None)
        raise challenge() if challenge is not None else Refusal(403, "You may not see this dashboard.")

    def csrf_token(self, access: Access) -> str:
        return hmac.new(
            self._secret, f"csrf:{access.name}".encode("utf-8", "surrogatepass"), hashlib.sha256
        ).hexdigest()

    def check_change(self, request: Request, access: Access, form: Mapping[str, Any]) -> None:
        """Raises Refusal unless a page of ours made the request, or it has a proof that no browser adds."""
        if not access.is_ambient:
            return
        site = request.headers.get("sec-fetch-site")
        if site is None:
            # An old browser, or a program. A browser sends the origin with every POST to another site.
            origin = request.headers.get("origin")
            if (
                origin is not None
                and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
            ):
                raise Refusal(403, "The request comes from a page of another site.")
        elif site != "same-origin":
            raise Refusal(403, "The request comes from a page of another site.")
        given = request.headers.get(CSRF_HEADER) or form.get(CSRF_FIELD) or ""
        if not isinstance(given, str) or not hmac.compare_digest(
            given.encode("utf-8", "replace"), self.csrf_token(access).encode()
        ):
            raise Refusal(403, "The page is too old to act with. Load it again.")

    def _check_local(self, request: Request) -> None:
        peer = request.client.host if request.client is not None else ""
        if not is_loopback(peer) or any(name.startswith(FORWARDED) for name in request.headers):
            raise Refusal(
                403,
                "This dashboard asks for no password, so it answers this machine only. "
                "Give it a token, a user or a callable that authenticates.",
            )
        name = _host_name(request.headers.get("host", ""))
        if not (is_loopback(name) or name in self._hosts):
            raise Refusal(403, f"The dashboard is not reached by the name {name!r} here: use localhost.")


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _host_name(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _digest(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"penstock {purpose}".encode(), hashlib.sha256).hexdigest()


def _authorization(request: Request) -> str:
    """The header as UTF-8, which programs send; the framework reads headers as Latin-1."""
    header = request.headers.get("authorization", "")
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _cookie(request: Request, name: str) -> str:
    try:
        morsel = SimpleCookie(request.headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value
