"""How text stands on a screen: in cells, of which some characters take two; none may steer the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from penstock.cli.output import MISSING, printable

__all__ = ["Grid", "amount", "beside", "brief", "cell", "cut", "joined", "rate"]

MORE = "~"


def amount(number: int | None) -> str:
    """A count in six cells: 12,345, then 123k, 12.3M."""
    if number is None:
        return MISSING
    if abs(number) < 100_000:
        return f"{number:,}"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(number) >= size:
            value = number / size
            return f"{value:.1f}{unit}" if abs(value) < 100 else f"{value:,.0f}{unit}"
    return f"{number // 1000}k"


def rate(per_second: float | None) -> str:
    """A rate in six cells."""
    if per_second is None:
        return MISSING
    if per_second == 0:
        return "0"
    return f"{per_second:.1f}" if per_second < 99.95 else amount(round(per_second))


def brief(seconds: float | None) -> str:
    """A length of time in six cells: 850ms, 12s, 3m20s, 2h05m, 4d03h, 365d."""
    if seconds is None:
        return MISSING
    left = max(0.0, seconds)
    if left < 1:
        return f"{left * 1000:.0f}ms" if left else "0s"
    whole = int(left)
    if whole < 60:
        return f"{whole}s"
    for size, unit, smaller, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}" + (f"{rest:02}{below}" if rest and whole < 100 * 86400 else "")
    raise AssertionError(seconds)


def cut(text: str, width: int) -> str:
    """No more of it than fits; its end says if there was more."""
    clean = printable(text)
    if cell_len(clean) <= width:
        return clean
    return "" if width <= 0 else set_cell_size(clean, width - 1) + MORE


def cell(text: str, width: int, *, right: bool = False) -> str:
    """Exactly so wide."""
    shown = cut(text, width)
    blanks = " " * max(0, width - cell_len(shown))
    return blanks + shown if right else shown + blanks


def joined(pieces: Iterable[Text], width: int, gap: str = "  ") -> Text:
    """As many of the pieces as fit, the first of them in any case."""
    line = Text(no_wrap=True, end="")
    for number, piece in enumerate(pieces):
        if number and line.cell_len + len(gap) + piece.cell_len > width:
            break
        if number:
            line.append(gap)
        line.append_text(piece)
    line.truncate(max(0, width))
    return line


def beside(left: Text, right: Text, width: int) -> Text:
    """One at each end of a line; the right one only where there is room for both."""
    blanks = width - left.cell_len - right.cell_len
    if blanks < 2:
        return joined([left], width)
    return Text.assemble(left, " " * blanks, right)


class Grid:
    """A small table of text: its columns as wide as they have to be, the last one as wide as it may."""

    def __init__(self, headings: Sequence[str], *, right: Iterable[int] = ()) -> None:
        self._rows: list[Sequence[str | Text]] = [[Text(each, "heading") for each in headings]]
        self._right = frozenset(right)

    def add(self, *cells: str | Text) -> None:
        self._rows.append(cells)

    @property
    def is_empty(self) -> bool:
        return len(self._rows) == 1

    def lines(self, width: int, indent: str = " ") -> list[Text]:
        widths = [max(cell_len(_plain(each)) for each in column) for column in zip(*self._rows, strict=True)]
        lines = []
        for row in self._rows:
            line = Text(indent, no_wrap=True, end="")
            for number, (each, wide) in enumerate(zip(row, widths, strict=True)):
                left = width - line.cell_len
                if left <= 0:
                    break
                shown = cell(_plain(each), min(wide, left), right=number in self._right)
                line.append(shown + "  ", each.style if isinstance(each, Text) else None)
            line.rstrip()
            line.truncate(max(0, width))
            lines.append(line)
        return lines


def _plain(text: str | Text) -> str:
    return printable(text.plain if isinstance(text, Text) else text)
