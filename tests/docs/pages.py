"""The pages of the documentation, cut into their fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Block", "all_pages", "blocks", "links", "name_of"]

ROOT = Path(__file__).parents[2]

FENCE = re.compile(r"^```(.*)$")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, what else its fence says, its text and the line where that begins."""

    language: str
    mark: str
    text: str
    line: int


def all_pages() -> list[Path]:
    """README.md and every page of docs/. The notes are parts of the page of SQL functions."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in pages if page.parent.name != "notes")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    opened: tuple[str, str, int] | None = None
    held: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            language, _, mark = fence[1].strip().partition(" ")
            opened, held = (language, mark, number + 1), []
        elif opened is not None and fence:
            language, mark, begin = opened
            yield Block(language, mark, "\n".join(held) + "\n", begin)
            opened = None
        else:
            held.append(line)
    if opened is not None:
        raise AssertionError(f"{name_of(page)}:{opened[2]}: the block is not closed")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Each link to another file, or to a heading: the file, and the anchor or an empty string."""
    outside = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in LINK.findall(outside):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path if path else page), anchor
