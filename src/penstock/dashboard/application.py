"""The ASGI app: who asks, which page or action it is, and the answer as HTML or JSON."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from penstock import calls
from penstock.errors import DatabaseUnavailable, InvalidArgument, NotFound, PenstockError, PermissionDenied
from penstock.tasks.app import App
from penstock.wording import escaped

from . import auditing, metrics, openapi, views
from .access import SESSION_COOKIE, SESSION_SECONDS, Access, Guard, Permission, Refusal
from .addresses import make_path, segments_of
from .assets import Assets
from .background import Background
from .database import Database
from .exact_json import dump
from .live import ALL, Live
from .options import Options
from .pages import Act, Action, Done, Download, Missing, Page, Routes, View
from .redaction import Redaction
from .rendering import render

__all__ = ["Dashboard", "asgi"]

logger = logging.getLogger("penstock.dashboard")

MOST_BODY_BYTES = 1_000_000
COMPRESSED_FROM = 1000
# Compressed in a thread.
LARGE_BYTES = 100_000
# Not compressed: it would take seconds, and memory twice.
MOST_COMPRESSED = 10_000_000
API = ("api", "v1")
# SQLSTATEs: a wait for a lock that was too long, and a statement that was.
LOCKED, CANCELLED = "55P03", "57014"
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
FOR_EVER = "public, max-age=31536000, immutable"


def asgi(app_or_dsn: App | str | None = None, **options: Any) -> Dashboard:
    """The dashboard as an ASGI app, to serve or to mount under any prefix.

    app_or_dsn: an app, a DSN, or None for the database of the environment. options: see `Options`.
    """
    return Dashboard(app_or_dsn, Options(**options))


class Dashboard:
    """An ASGI app. It starts with the first request; close() ends its streams and connections."""

    def __init__(self, app_or_dsn: App | str | None, options: Options) -> None:
        self.options = options
        self.guard = Guard(options.authenticate, secret=options.secret.encode(), hosts=options.hosts)
        self.assets = Assets()
        self.routes = Routes(views.MODULES)
        # The first segments of pages, and the parts of a queue: templates link to what exists.
        self.sections = {each.segments[0] for each in self.routes.pages if each.segments} | {
            ("queues", each.segments[2])
            for each in self.routes.pages
            if each.segments[:1] == ("queues",) and len(each.segments) == 3
        }
        # How often each action was done here, for /metrics. From 0 on: a rise from nothing is no rise.
        self.action_counts = Counter({each.name: 0 for each in self.routes.actions})
        self._source = app_or_dsn
        self.redaction = Redaction(options.redact)
        self.downloading = asyncio.Lock()
        self._database: Database | None = None
        self._live: Live | None = None
        self._background: Background | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._restore: list[tuple[signal.Signals, Any]] = []

    # Start and end

    def start(self, *, watch_signals: bool = True) -> Live:
        """Begin to read, in the running loop. watch_signals: end streams when a signal stops the process."""
        if self._live is not None and self._loop is asyncio.get_running_loop():
            return self._live
        self._loop = asyncio.get_running_loop()
        self.downloading = asyncio.Lock()
        self._database = Database(
            self._source,
            viewer_dsn=self.options.viewer_dsn,
            read_only=self.options.read_only,
            viewer_connections=self.options.viewer_connections,
            action_connections=self.options.action_connections,
        )
        self._live = Live(self._database)
        self._live.start()
        if self._database.actions is not None:
            self._background = Background(self._database.actions)
            self._background.start()
        if watch_signals:
            self._watch_signals()
        return self._live

    def end_streams(self) -> None:
        """End the streams of all tabs: a server waits for its open requests before it stops."""
        if self._live is not None:
            self._live.end_streams()

    async def close(self) -> None:
        """End streams, the reader and the connections."""
        live, self._live = self._live, None
        database, self._database = self._database, None
        background, self._background = self._background, None
        if live is not None:
            await live.close()
        if background is not None:
            await background.close()
        if database is not None:
            await database.close()
        for number, handler in self._restore:
            signal.signal(number, handler)
        self._restore = []

    def wake(self) -> None:
        """An action may have begun or cancelled an operation."""
        if self._background is not None:
            self._background.wake()

    def _watch_signals(self) -> None:
        """Servers wait for open requests when they are told to stop, and tell the app only afterwards."""
        if threading.current_thread() is not threading.main_thread() or self._restore:
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            if callable(before):

                def handle(got: int, frame: FrameType | None, before: Any = before) -> None:
                    if self._loop is not None and not self._loop.is_closed():
                        self._loop.call_soon_threadsafe(self.end_streams)
                    before(got, frame)

                signal.signal(number, handle)
                self._restore.append((number, before))

    # Requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            self.start()
            await _Exchange(self, scope, receive, send).run()
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    @property
    def live(self) -> Live:
        assert self._live is not None
        return self._live

    @property
    def database(self) -> Database:
        assert self._database is not None
        return self._database


class _Exchange:
    """One request and its answer."""

    def __init__(self, dashboard: Dashboard, scope: Scope, receive: Receive, send: Send) -> None:
        self._dashboard = dashboard
        self._scope, self._receive, self._send = scope, receive, send
        self._request = Request(scope, receive)
        self._root = quote(str(scope.get("root_path") or "").rstrip("/"))
        self._segments = segments_of(scope)
        self._is_api = tuple(self._segments[:2]) == API
        self._access: Access | None = None

    async def run(self) -> None:
        try:
            response = await self._answer()
        except ClientDisconnect:
            return
        except Refusal as exc:
            response = self._refused(exc)
        except (Missing, NotFound) as exc:
            response = self._failed(404, str(exc), getattr(exc, "hint", None))
        except InvalidArgument as exc:
            response = self._failed(422, str(exc), exc.hint)
        except PermissionDenied as exc:
            response = self._failed(403, str(exc), exc.hint)
        except psycopg.errors.InsufficientPrivilege as exc:
            response = self._failed(403, f"The database does not allow this: {exc.diag.message_primary}")
        except (DatabaseUnavailable, psycopg.OperationalError) as exc:
            response = self._failed(503, _trouble(exc))
        except PenstockError as exc:
            response = self._failed(409, _line(exc), exc.hint)
        except psycopg.Error as exc:
            logger.warning("%s %s: %s", self._request.method, self._path, _line(exc))
            response = self._failed(500, f"The database reports: {exc.diag.message_primary or _line(exc)}")
        except Exception:
            logger.exception("%s %s failed", self._request.method, self._path)
            response = self._failed(500, "The dashboard failed. Its log has the reason.")
        if response is not None:
            await self._finish(response)

    async def _finish(self, response: Response) -> None:
        for name, value in SECURITY.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        body = bytes(response.body)
        is_fit = COMPRESSED_FROM <= len(body) <= MOST_COMPRESSED
        if is_fit and "content-encoding" not in response.headers and self._takes_gzip():
            response.body = await asyncio.to_thread(_zip, body) if len(body) > LARGE_BYTES else _zip(body)
            response.headers["Content-Encoding"] = "gzip"
            response.headers["Content-Length"] = str(len(response.body))
            response.headers.add_vary_header("Accept-Encoding")
        if self._request.method == "HEAD":
            response.body = b""
        await response(self._scope, self._receive, self._send)

    def _takes_gzip(self) -> bool:
        return "gzip" in self._request.headers.get("accept-encoding", "")

    async def _answer(self) -> Response | None:
        method, segments = self._request.method, self._segments
        if method not in ("GET", "HEAD", "POST"):
            raise Refusal(405, "Only GET and POST are known here.", {"Allow": "GET, HEAD, POST"})
        if segments[:1] == ["static"] and len(segments) == 3:
            return self._static(segments[1], segments[2])
        if segments in (["livez"], ["readyz"]):
            return self._health(segments[0])
        if segments == ["login"]:
            return await self._login()
        self._access = await self._dashboard.guard.identify(self._request)
        if not self._access.may(Permission.VIEW):
            raise Refusal(403, "You may not see this dashboard.")
        if method == "POST":
            return await self._act()
        return await self._show()

    # Reading

    async def _show(self) -> Response | None:  # noqa: PLR0911 - one for each kind of answer
        dashboard, segments = self._dashboard, self._segments
        if segments != ["metrics"]:
            # A scrape is no viewer: else the numbers would be read at the pace of an open tab for ever.
            dashboard.live.expect_viewer()
        if segments == ["events"]:
            if self._request.method == "HEAD":
                raise Refusal(405, "A stream has no head alone.", {"Allow": "GET"})
            if not dashboard.live.has_room:
                raise Refusal(503, "Too many tabs are open.", {"Retry-After": "30"})
            await self._stream()
            return None
        if segments == ["metrics"]:
            return Response(
                await metrics.text(dashboard.live, dashboard.action_counts), media_type=metrics.MEDIA_TYPE
            )
        if segments == ["api", "openapi.json"]:
            return self._json(200, openapi.describe(dashboard.routes, make_path(self._root, API)))
        if segments == ["api"]:
            return RedirectResponse(make_path(self._root, ("api", "openapi.json")), 303)
        if self._is_api and segments[2:] == ["session"]:
            return self._json(200, self._session())
        if not segments and not self._request.url.path.endswith("/"):
            return RedirectResponse(make_path(self._root, ()), 308)
        found = dashboard.routes.find_page(segments[2:] if self._is_api else segments)
        if found is None or (found[0].template is None and not self._is_api):
            raise Missing("There is no such page.")
        page, names = found
        await dashboard.database.open()
        view = self._view()
        data = await page.run(view, **names)
        if isinstance(data, Download):
            return self._download(data)
        if self._is_api:
            return self._json(200, data)
        return self._page(page, names, view, data)

    def _view(self) -> View:
        assert self._access is not None
        return View(
            request=self._request,
            access=self._access,
            client=self._dashboard.database.viewers,
            live=self._dashboard.live,
            options=self._dashboard.options,
            redaction=self._dashboard.redaction,
            downloading=self._dashboard.downloading,
        )

    async def _stream(self) -> None:
        query = self._request.query_params
        since = self._request.headers.get("last-event-id") or query.get("since")
        queue = ALL if "all" in query else query.get("queue")
        await self._dashboard.live.stream(
            self._receive, self._send, queue=queue, since=since, takes_gzip=self._takes_gzip()
        )

    def _session(self) -> dict[str, Any]:
        assert self._access is not None
        permission = Permission.VIEW if self._dashboard.options.read_only else self._access.permission
        return {
            "name": self._access.name,
            "permission": permission.name.lower(),
            "csrf_token": self._dashboard.guard.csrf_token(self._access),
        }

    # Acting

    async def _act(self) -> Response:
        dashboard, access = self._dashboard, self._access
        assert access is not None
        found = dashboard.routes.find_action(self._segments[2:] if self._is_api else self._segments)
        if self._segments == ["logout"]:
            dashboard.guard.check_change(self._request, access, await self._form())
            return self._sign_out()
        if found is None:
            raise Missing("There is no such action.")
        action, names = found
        form = await self._form()
        dashboard.guard.check_change(self._request, access, form)
        actions = dashboard.database.actions
        if actions is None:
            raise Refusal(403, "This dashboard only shows: it was started with --read-only.")
        if not access.may(action.needs):
            raise Refusal(
                403, f"{access.name} may not do this: it needs the permission to {action.needs.name.lower()}."
            )
        done = await self._run(action, names, form)
        dashboard.action_counts[action.name] += 1
        dashboard.wake()
        await dashboard.live.renew()
        logger.info("%s by %s: %s", action.name, _line(access.name), _line(done.message))
        return self._done(done)

    async def _run(self, action: Action, names: Mapping[str, str], form: Mapping[str, Any]) -> Done:
        """Run an action, and write the audit in its transaction."""
        access, client = self._access, self._dashboard.database.actions
        assert access is not None
        assert client is not None
        async with client.transaction() as tx:
            # Else a few of them would wait for one lock, and hold all connections.
            await tx.connection.execute(calls.LIMIT_LOCK_WAITS.encode())
            act = Act(access, tx, form)
            done = await action.run(act, **names)
            await auditing.record(
                tx, act, action=action, names=names, outcome=done.message, redaction=self._dashboard.redaction
            )
        return done

    async def _form(self) -> dict[str, Any]:
        body = bytearray()
        async for chunk in self._request.stream():
            body += chunk
            if len(body) > MOST_BODY_BYTES:
                raise Refusal(413, f"A form of more than {MOST_BODY_BYTES:,} bytes is not taken.")
        kind = self._request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind == "application/json":
                found = json.loads(body or b"{}")
                if not isinstance(found, dict):
                    raise Refusal(422, "The body must be a JSON object.")
                return found
            if kind in ("application/x-www-form-urlencoded", ""):
                fields = parse_qs(
                    body.decode(), keep_blank_values=True, max_num_fields=20_000, errors="strict"
                )
                return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
        except (ValueError, RecursionError) as exc:
            raise Refusal(422, f"The form cannot be read: {exc}") from None
        raise Refusal(415, f"The body must be a form or JSON, not {kind}.")

    def _done(self, done: Done) -> Response:
        go = None if done.go is None else make_path(self._root, done.go)
        if self._is_api:
            return self._json(
                200, {"message": done.message, "status": done.status, "data": done.data, "page": go}
            )
        if "hx-request" in self._request.headers:
            return Response(status_code=204, headers={"HX-Trigger": _toast(done.message, done.status, go)})
        return RedirectResponse(go or self._page_before(), 303)

    def _page_before(self) -> str:
        """The page of ours that the form was on."""
        try:
            path = urlsplit(self._request.headers.get("referer", "")).path
        except ValueError:
            path = ""
        # `//name` would be another host.
        return path if path.startswith("/") and not path.startswith("//") else make_path(self._root, ())

    # Sign in with a token, and out

    async def _login(self) -> Response:
        tokens = self._dashboard.guard.tokens
        home = make_path(self._root, ())
        if tokens is None:
            return RedirectResponse(home, 303)
        if self._request.method == "POST":
            form = await self._form()
            if self._request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                raise Refusal(403, "The request comes from a page of another site.")
            token = str(form.get("token", ""))
        else:
            token = ""  # not in the address, which is logged
        if tokens.find(token) is None:
            status, why = (401, "That is not the token.") if token else (200, "")
            return self._html(status, "login.html", title="Sign in", why=why)
        response = RedirectResponse(home, 303)
        response.set_cookie(
            SESSION_COOKIE,
            tokens.session(token),
            max_age=SESSION_SECONDS,
            path=self._root or "/",
            httponly=True,
            samesite="strict",
            secure=self._request.url.scheme == "https",
        )
        return response

    def _sign_out(self) -> Response:
        response = RedirectResponse(make_path(self._root, ("login",)), 303)
        response.delete_cookie(SESSION_COOKIE, path=self._root or "/", httponly=True, samesite="strict")
        return response

    # Answers

    @property
    def _path(self) -> str:
        """The path for the log: what a stranger may have put there cannot end a line."""
        return escaped(self._request.url.path)

    def _static(self, digest: str, name: str) -> Response:
        asset = self._dashboard.assets.find(name)
        if asset is None:
            raise Missing("There is no such file.")
        headers = {
            "Cache-Control": FOR_EVER if digest == asset.digest else "no-cache",
            "Vary": "Accept-Encoding",
        }
        if not self._takes_gzip():
            return Response(asset.content, media_type=asset.kind, headers=headers)
        return Response(
            asset.compressed, media_type=asset.kind, headers={**headers, "Content-Encoding": "gzip"}
        )

    def _health(self, name: str) -> Response:
        is_so = name == "livez" or self._dashboard.live.is_ready
        word = name.removesuffix("z")
        text = f"{word}\n" if is_so else f"not {word}\n"
        return Response(text, 200 if is_so else 503, media_type="text/plain")

    def _json(self, status: int, data: Any) -> Response:
        return Response(dump(data), status, media_type="application/json")

    def _download(self, data: Download) -> Response:
        name = "".join(
            each if each.isalnum() or each in "-_." else "_" for each in data.name if each.isascii()
        )
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Security-Policy": "default-src 'none'; sandbox",
        }
        return Response(data.content, media_type=data.kind, headers=headers)

    def _page(self, page: Page, names: Mapping[str, str], view: View, data: Any) -> Response:
        assert page.template is not None
        return self._html(200, page.template, title=page.title.format(**names), view=view, data=data, **names)

    def _html(self, status: int, template: str, **values: Any) -> Response:
        dashboard, access = self._dashboard, self._access
        theme = self._request.cookies.get("penstock_theme", "")
        text = render(
            template,
            root=self._root,
            assets=dashboard.assets,
            layout="fragment.html" if "hx-request" in self._request.headers else "base.html",
            here=self._segments,
            sections=dashboard.sections,
            self_url=self._self_url(),
            theme=theme if theme in ("dark", "light") else "",
            site=dashboard.options.title,
            read_only=dashboard.options.read_only,
            access=access,
            csrf="" if access is None else dashboard.guard.csrf_token(access),
            tick=dashboard.live.tick,
            # It names the server: that is not for strangers.
            trouble=None if access is None else dashboard.live.trouble,
            can_sign_out=dashboard.guard.tokens is not None and access is not None,
            query=self._request.query_params,
            **values,
        )
        return Response(text, status, media_type="text/html")

    def _self_url(self) -> str:
        raw = self._scope.get("raw_path") or self._scope["path"].encode()
        path = "/" + raw.decode("latin-1").partition("?")[0].lstrip("/")
        if self._root and not path.startswith(self._root):
            path = self._root + path
        query = self._scope.get("query_string", b"").decode("latin-1")
        return f"{path}?{query}" if query else path

    def _refused(self, exc: Refusal) -> Response:
        if exc.status == 401 and self._dashboard.guard.tokens is not None and self._wants_page():
            return RedirectResponse(make_path(self._root, ("login",)), 303)
        response = self._failed(exc.status, exc.why)
        response.headers.update(exc.headers)
        return response

    def _wants_page(self) -> bool:
        is_page = not self._is_api and self._segments[:1] not in (["events"], ["metrics"], ["api"])
        return is_page and self._request.method == "GET" and "hx-request" not in self._request.headers

    def _failed(self, status: int, message: str, hint: str | None = None) -> Response:
        if self._is_api or self._segments[:1] in (["events"], ["metrics"], ["api"]):
            return self._json(status, {"error": {"status": status, "message": message, "hint": hint}})
        if self._request.method == "POST" and "hx-request" in self._request.headers:
            text = f"{message} {hint}" if hint else message
            return Response(status_code=status, headers={"HX-Trigger": _toast(text, "problem", None)})
        with suppress(Exception):
            return self._html(
                status, "error.html", title=f"{status}", code=status, message=message, hint=hint
            )
        return Response(message, status, media_type="text/plain")


def _toast(message: str, status: str, go: str | None) -> str:
    return json.dumps({"penstock:toast": {"message": message, "status": status, "go": go}})


def _trouble(exc: DatabaseUnavailable | psycopg.OperationalError) -> str:
    """Why the database did not do it, for a person."""
    if exc.sqlstate == LOCKED:
        return "Another session holds a lock that this needs. Nothing was done: try again."
    if exc.sqlstate == CANCELLED:
        return "This takes the database too long, so it was given up."
    return f"The database cannot be reached: {_line(exc)}"


def _zip(body: bytes) -> bytes:
    return gzip.compress(body, 5)


def _line(text: object) -> str:
    return escaped(" ".join(str(text).split()))
