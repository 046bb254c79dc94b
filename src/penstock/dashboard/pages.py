"""How a page is made: one view function that returns a data object, and one template.

The same function answers `/queues/x` with HTML and `/api/v1/queues/x` with JSON. To add a page:

1. Write a module in `views/` with a frozen dataclass for the data and a function:

       @page("/topics", template="topics.html", title="Topics", about="All topics.")
       async def topics(view: View) -> TopicsPage: ...

   `{name}` in a path is one segment, decoded, and an argument of the function. `view.client` can only read.
2. Write the template: it extends `layout` and gets `data`, `view` and the macros of `macros.html`.
3. An action is a function with @action. It runs in a transaction on the client of actions (`act.tx`), and
   the audit is written there, too. It returns `Done`: a sentence, and where to go.
4. List the module in `views/__init__.py`.

`/api/openapi.json` is made from what the decorators know.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from starlette.requests import Request

from penstock._async.client import AsyncClient
from penstock._async.transaction import AsyncTransaction

from .access import Access, Permission
from .addresses import decode_segment

if TYPE_CHECKING:
    from .live import Live
    from .options import Options
    from .redaction import Redaction

__all__ = ["Act", "Action", "Done", "Download", "Missing", "Page", "Routes", "View", "action", "page"]

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class Missing(Exception):  # noqa: N818 - an answer, not an error
    """There is no such queue, message or other thing."""


@dataclass(frozen=True, slots=True)
class View:
    """What a view function has: the request, who asks, and a client that can only read.

    downloading: held while a large value is in memory several times.
    """

    request: Request
    access: Access
    client: AsyncClient
    live: Live
    options: Options
    redaction: Redaction
    downloading: asyncio.Lock

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the address."""
        return self.request.query_params

    def may(self, needed: str) -> bool:
        """Whether the viewer may "act" or "administer" here: pages hide what they may not do."""
        return not self.options.read_only and self.access.may(Permission[needed.upper()])


@dataclass(frozen=True, slots=True)
class Act:
    """What an action has: a transaction, and the fields of the form or of the JSON body.

    detail: goes into the audit beside the form; an action may add to it.
    """

    access: Access
    tx: AsyncTransaction[Any]
    form: Mapping[str, Any]
    detail: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        """A field as text, without surrounding blanks."""
        value = self.form.get(name, default)
        return value.strip() if isinstance(value, str) else str(value)

    def many(self, name: str) -> list[str]:
        """All values of a field that may be given more than once."""
        value = self.form.get(name, [])
        return [str(each) for each in value] if isinstance(value, list) else [str(value)]


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, in a sentence. go: the segments of the page to show next; None: stay."""

    message: str
    go: Sequence[object] | None = None
    data: Any = None
    status: str = "ok"


@dataclass(frozen=True, slots=True)
class Download:
    """An answer that is a file."""

    name: str
    kind: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """A route that reads. template: None if there is only JSON."""

    segments: tuple[str, ...]
    run: Callable[..., Awaitable[Any]]
    template: str | None
    title: str
    about: str
    query: Mapping[str, str]
    returns: Any
    needs: Permission = Permission.VIEW


@dataclass(frozen=True, slots=True)
class Action:
    """A route that changes something."""

    segments: tuple[str, ...]
    run: Callable[..., Awaitable[Done]]
    name: str
    about: str
    needs: Permission
    fields: Mapping[str, str]


def page(
    path: str,
    *,
    template: str | None = None,
    title: str = "",
    about: str = "",
    query: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Make a function a page. title may use the names in the path. query: parameters, and their meaning."""

    def declare(function: F) -> F:
        returns = get_type_hints(function).get("return")
        found = Page(
            _segments(path), function, template, title, about or _about(function), dict(query or {}), returns
        )
        _attach(function, found)
        return function

    return declare


def action(
    path: str,
    *,
    name: str,
    needs: str = "act",
    about: str = "",
    fields: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Make a function an action. name: as the audit has it. needs: "act" or "administer".

    fields: all that it reads of the form, and what they mean.
    """

    def declare(function: F) -> F:
        found = Action(
            _segments(path),
            function,
            name,
            about or _about(function),
            Permission[needs.upper()],
            dict(fields or {}),
        )
        _attach(function, found)
        return function

    return declare


class Routes:
    """All pages and actions of some modules, found by the segments of a path."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self.pages: list[Page] = []
        self.actions: list[Action] = []
        for module in modules:
            for _, function in inspect.getmembers(module, inspect.iscoroutinefunction):
                if function.__module__ != module.__name__:
                    continue
                for route in getattr(function, "penstock_routes", ()):
                    (self.pages if isinstance(route, Page) else self.actions).append(route)

    def find_page(self, segments: Sequence[str]) -> tuple[Page, dict[str, str]] | None:
        return _find(self.pages, segments)

    def find_action(self, segments: Sequence[str]) -> tuple[Action, dict[str, str]] | None:
        return _find(self.actions, segments)


R = TypeVar("R", Page, Action)


def _find(routes: Sequence[R], segments: Sequence[str]) -> tuple[R, dict[str, str]] | None:
    """A literal segment goes before a name: `/queues/x/settings` is not a message."""
    best: tuple[int, R, dict[str, str]] | None = None
    for route in routes:
        names = _match(route.segments, segments)
        if names is not None and (best is None or len(names) < best[0]):
            best = len(names), route, names
    return None if best is None else (best[1], best[2])


def _match(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    names = {}
    for expected, given in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            try:
                names[expected[1:-1]] = decode_segment(given)
            except ValueError:
                return None
        elif expected != given:
            return None
    return names


def _segments(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _about(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _attach(function: Any, route: Page | Action) -> None:
    function.penstock_routes = (*getattr(function, "penstock_routes", ()), route)
