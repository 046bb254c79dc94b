"""Static files: read once, compressed once, under addresses that change with their content."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["Asset", "Assets"]

FOLDER = Path(__file__).parent / "static"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# One request each: what every page needs of the vendored files, and what pages with charts need.
FILES = {
    "app.css": ("app.css",),
    "app.js": ("app.js",),
    "htmx.js": ("vendor/htmx.min.js", "vendor/hx-sse.min.js"),
    "uplot.js": ("vendor/uPlot.min.js",),
    "uplot.css": ("vendor/uPlot.min.css",),
    "icon.svg": ("icon.svg",),
    "htmx.LICENSE.txt": ("vendor/htmx.LICENSE.txt",),
    "uPlot.LICENSE.txt": ("vendor/uPlot.LICENSE.txt",),
}


@dataclass(frozen=True, slots=True)
class Asset:
    name: str
    kind: str
    digest: str
    content: bytes
    compressed: bytes


class Assets:
    """All static files, by name."""

    @cached_property
    def _assets(self) -> dict[str, Asset]:
        return {name: _read(name, parts) for name, parts in FILES.items()}

    def segments(self, name: str) -> tuple[str, str, str]:
        """The path of a file, below the root."""
        return "static", self._assets[name].digest, name

    def find(self, name: str) -> Asset | None:
        """The file; None if there is none of that name."""
        return self._assets.get(name)


def _read(name: str, parts: tuple[str, ...]) -> Asset:
    content = b"\n".join((FOLDER / part).read_bytes() for part in parts)
    digest = hashlib.sha256(content).hexdigest()[:12]
    return Asset(name, KINDS[Path(name).suffix], digest, content, gzip.compress(content, 9, mtime=0))
