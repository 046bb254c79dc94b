"""Search: `id: queue: state: tenant: key: task: payload.a.b:`, and how far it looked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, get_args

from penstock.dashboard.pages import View, page
from penstock.errors import InvalidArgument
from penstock.models import State
from penstock.operations import SearchResult
from penstock.wording import shown

__all__ = ["SearchPage", "parse", "search"]

# A word, a value in quotes, or name:value; in quotes a backslash comes before a quote or a backslash.
TERM = re.compile(r'\s*(?:([A-Za-z_]+(?:\.[^\s:"]+)?):)?(?:"((?:[^"\\]|\\.)*)"|([^\s"]\S*))')
NAMES = {
    "id": "message_id",
    "queue": "queue_name",
    "state": "state",
    "tenant": "tenant",
    "key": "dedup_key",
    "task": "task_name",
}
PAGE_SIZE = 50
# A step of the search goes beyond that. The page is to be there after half a second.
SEARCH_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class SearchPage:
    """What was asked, and what was found. result: None if nothing was asked.

    is_full: the page has no room for more matches.
    """

    q: str
    result: SearchResult | None
    is_full: bool
    examples: tuple[str, ...] = field(
        default=(
            "id:4711",
            "queue:mail state:dead task:send_mail",
            'tenant:"acme inc"',
            "payload.order.id:17",
        )
    )


@page(
    "/search",
    template="search.html",
    title="Search",
    query={"q": "Terms such as id:4711, queue:mail, state:dead, tenant:acme, key:x, task:t, payload.a.b:17."},
)
async def search(view: View) -> SearchPage:
    """Find messages by their id, queue, state, tenant, dedup key, task or a value in the payload."""
    text = view.query.get("q", "").strip()
    if not text:
        return SearchPage("", None, False)
    wanted = parse(text)
    path = wanted.get("payload_path")
    if path and any(view.redaction.hides(part) for part in path):
        raise InvalidArgument(f"payload.{'.'.join(path)} is redacted, so it cannot be searched.")
    value = wanted.get("payload_value")
    if value is not None and view.redaction.in_text(value) != value:
        # Else a guess at a whole object would find out what is in it.
        raise InvalidArgument("The value has a redacted key, so it cannot be searched.")
    result = await view.client.search_messages(**wanted, page_size=PAGE_SIZE, deadline=SEARCH_SECONDS)
    return SearchPage(text, result, len(result.matches) == PAGE_SIZE)


def parse(text: str) -> dict[str, Any]:
    """The terms of a query as arguments of search_messages(). A number alone is an id."""
    found: dict[str, Any] = {}
    at = 0
    text = text.strip()
    while at < len(text):
        match = TERM.match(text, at)
        if match is None:
            raise InvalidArgument(
                f"The query cannot be read from {shown(text[at:])} on: a quote is not closed."
            )
        at = match.end()
        name, quoted, bare = match.groups()
        value = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        if name is None and value.isdecimal():
            name = "id"
        key, argument = _argument(name, value)
        if key in found:
            raise InvalidArgument(f"{name} is given twice.")
        found[key] = argument
        if key == "payload_path":
            found["payload_value"] = value
    return found


def _argument(name: str | None, value: str) -> tuple[str, Any]:
    if name is None:
        raise InvalidArgument(
            f"{shown(value)} is neither an id nor a term such as queue:{value[:20]} or tenant:{value[:20]}"
        )
    if name.startswith("payload."):
        return "payload_path", name.removeprefix("payload.").split(".")
    if name not in NAMES:
        raise InvalidArgument(f"There is no term {shown(name)}: only {', '.join(NAMES)} and payload.a.b.")
    if name == "id":
        if not value.isdecimal() or len(value) > 18:
            raise InvalidArgument(f"id must be a number, not {shown(value)}")
        return NAMES[name], int(value)
    if name == "state" and value not in get_args(State):
        raise InvalidArgument(f"state must be one of {', '.join(get_args(State))}, not {shown(value)}")
    return NAMES[name], value
