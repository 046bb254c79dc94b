"""How data becomes a page: templates, and the words and numbers in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from penstock.version import __version__
from penstock.wording import age

from .addresses import make_path
from .assets import Assets
from .exact_json import dump

__all__ = ["render"]

NONE = "\N{EN DASH}"
FOLDER = Path(__file__).parent / "templates"
SPARK_WIDTH, SPARK_HEIGHT = 120, 28
PRIORITIES = ("urgent", "high", "normal", "low")
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d(?::\d\d)?")


def render(template: str, *, root: str, assets: Assets, **values: Any) -> str:
    """A template as HTML. root: the prefix of all addresses."""

    def url(*parts: object, **query: Any) -> str:
        return make_path(root, parts, query)

    def static(name: str) -> str:
        return make_path(root, assets.segments(name))

    return _environment().get_template(template).render(url=url, static=static, root=root, **values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
    )
    environment.filters.update(
        number=number,
        rate=rate,
        when=when,
        since=since,
        ago=ago,
        times=times,
        span=span,
        size=size,
        bdi=bdi,
        is_long=is_long,
        spark=spark,
        stacked=stacked,
        data=data_block,
    )
    environment.globals.update(version=__version__, now=lambda: datetime.now(UTC), priorities=PRIORITIES)
    return environment


# Numbers


def number(value: float | None, *, estimate: bool = False) -> str:
    """A count: 12,345. An estimate has a tilde, unless it is 0. Nothing known: a dash."""
    if value is None:
        return NONE
    return f"{'~' if estimate and value else ''}{value:,}"


def rate(per_second: float | None) -> str:
    """Per second, with as many digits as matter."""
    if per_second is None:
        return NONE
    if per_second == 0:
        return "0"
    if per_second < 0.095:
        return f"{per_second:.2f}" if per_second >= 0.005 else "<0.01"
    return f"{per_second:.1f}" if per_second < 99.95 else f"{per_second:,.0f}"


def size(count: int | None) -> str:
    """Bytes, in the unit that fits."""
    if count is None:
        return NONE
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


# Times


def span(seconds: float | timedelta | None) -> str:
    """A length of time: 3 min 20 s."""
    return NONE if seconds is None else age(seconds)


def when(at: datetime | None, *, empty: str = NONE) -> Markup | str:
    """A time, which the page shows in the viewer's zone."""
    return empty if at is None else _time(at, "when", at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))


def since(at: datetime | None, *, empty: str = NONE) -> Markup | str:
    """How long ago a time was, or how far ahead it is; the page keeps it up to date."""
    if at is None:
        return empty
    ahead = (at - datetime.now(UTC)).total_seconds()
    return _time(at, "since", f"in {age(ahead)}" if ahead > 0 else age(-ahead))


def ago(at: datetime | None, *, empty: str = NONE) -> Markup | str:
    """How far ahead a time is, or "3 s ago" if it is over: for times that may be either."""
    if at is None:
        return empty
    ahead = (at - datetime.now(UTC)).total_seconds()
    return _time(at, "ago", f"in {age(ahead)}" if ahead > 0 else f"{age(-ahead)} ago")


def times(text: str) -> Markup:
    """A sentence of the database: the times in it are shown in the viewer's zone."""

    def shown(found: re.Match[str]) -> str:
        try:
            at = datetime.fromisoformat(found[0])
        except ValueError:
            return found[0]
        return str(when(at))

    return Markup(STAMP.sub(shown, str(escape(text))))  # noqa: S704 - escaped before


def _time(at: datetime, kind: str, text: str) -> Markup:
    moment = at.astimezone(UTC)
    exact, full = moment.isoformat(timespec="milliseconds"), moment.isoformat(" ", "seconds")[:19]
    return Markup(  # noqa: S704 - no character of a time means anything to HTML
        f'<time datetime="{exact}" data-time="{kind}" title="{full} UTC">{text}</time>'
    )


# Text


def bdi(name: object) -> Markup:
    """A name within a sentence: right-to-left text in it does not turn round what follows."""
    return Markup("<bdi>{}</bdi>").format(name)


def is_long(text: str) -> bool:
    """Whether a text is folded up: it has several lines, or a very long one."""
    return "\n" in text.strip() or len(text) > 300


# Pictures and data


def spark(values: Sequence[float], label: str = "") -> Markup:
    """A line of the last values, as a picture without styles of its own."""
    polygon, line = _lines(tuple(values))
    return Markup(  # noqa: S704 - numbers, and an escaped label
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(label)}">'
        f'<polygon points="{polygon}"/><polyline points="{line}"/></svg>'
    )


# Values change every minute at the most, pages are made more often.
@lru_cache(maxsize=4096)
def _lines(values: tuple[float, ...]) -> tuple[str, str]:
    """The points of the area below a line, and of the line."""
    top = max(values, default=0) or 1
    step = SPARK_WIDTH / max(1, len(values) - 1)
    points = [
        f"{index * step:.1f},{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * value / top:.1f}"
        for index, value in enumerate(values)
    ]
    line = " ".join(points)
    return (f"0,{SPARK_HEIGHT} {line} {SPARK_WIDTH},{SPARK_HEIGHT}" if points else ""), line


def stacked(parts: Sequence[tuple[str, int]], most: int) -> Markup:
    """A bar of several counts, each with its class. most: what fills the whole width."""
    scale, at, bars = 100 / max(1, most), 0.0, []
    for kind, value in parts:
        bars.append(f'<rect class="{kind}" x="{at:.2f}" width="{value * scale:.2f}" height="8"/>')
        at += value * scale
    label = ", ".join(f"{value:,} {kind}" for kind, value in parts)
    return Markup(  # noqa: S704 - numbers, and words of the template
        f'<svg class="stacked" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(bars)}</svg>'
    )


def data_block(value: Any) -> Markup:
    """JSON for a `<script type="application/json">`: nothing in it can end the element."""
    text = dump(value).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(text)  # noqa: S704 - no character of it means anything to HTML
