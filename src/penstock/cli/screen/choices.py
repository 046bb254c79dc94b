"""What the user has chosen to see, and what each key changes about it; without terminal or database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .columns import COLUMNS, Column

__all__ = ["Ask", "Choices", "Look", "Order", "Quit", "Refresh", "SetPaused", "View"]

View: TypeAlias = Literal["queues", "queue", "workers", "help"]
INTERVALS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
BY_NAME = {column.name: column for column in COLUMNS}


@dataclass(frozen=True, slots=True)
class Quit:
    """Leave."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """Read now."""


@dataclass(frozen=True, slots=True)
class SetPaused:
    """Pause a queue, or let it deliver again."""

    queue_name: str
    paused: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Read what is in a queue."""

    queue_name: str


Order: TypeAlias = Quit | Refresh | SetPaused | Look


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that y answers; what is done then."""

    question: str
    order: Order


@dataclass(slots=True)
class Choices:
    """What is shown of what there is, and what was asked last."""

    interval: float = 2.0
    column: Column = BY_NAME["pending"]
    reverse: bool = False
    pattern: str = ""
    view: View = "queues"
    selected: str | None = None
    # The first line that is shown, of queues and of whatever else can be scrolled.
    first: int = 0
    scrolled: int = 0
    # How many lines a page has, as the last picture had it.
    page: int = 10
    frozen: bool = False
    filtering: bool = False
    ask: Ask | None = None
    # Queues as they are listed, and which of them are paused.
    names: list[str] = field(default_factory=list)
    paused: frozenset[str] = frozenset()

    def press(self, key: str) -> Order | None:
        """A key: changes what is shown, or is an order to do something."""
        if key == "interrupt":
            return Quit()
        if self.ask is not None:
            return self._answer(key)
        if self.filtering:
            self._edit_filter(key)
            return None
        if key in {"q", "Q", "end of input"}:
            return Quit()
        if self.view == "help":
            self.view = "queues"
            return None
        return self._anywhere(key) or (self._in_queues(key) if self.view == "queues" else self._inside(key))

    def take(self, names: list[str], paused: frozenset[str]) -> None:
        """Take the queues as they are now. What was selected stays, while it is there."""
        if self.selected not in names:
            # The one that took its place.
            index = self.names.index(self.selected) if self.selected in self.names else 0
            self.selected = names[min(index, len(names) - 1)] if names else None
        self.names, self.paused = names, paused

    def bring_into_view(self, rows: int) -> None:
        """Scroll so far that what is selected is among so many rows."""
        index = 0 if self.selected is None else self.names.index(self.selected)
        self.first = max(index - max(rows, 1) + 1, min(self.first, index, len(self.names) - rows), 0)
        self.page = max(rows, 1)

    def scroll(self, length: int, rows: int) -> int:
        """Scroll no further than there are lines; from which one on."""
        self.scrolled = max(0, min(self.scrolled, length - rows))
        self.page = max(rows, 1)
        return self.scrolled

    # Keys

    def _anywhere(self, key: str) -> Order | None:
        match key:
            case "?" | "h":
                self.view = "help"
            case " ":
                self.frozen = not self.frozen
                return None if self.frozen else Refresh()
            case "+" | "=":
                self.interval = next((step for step in INTERVALS if step > self.interval), self.interval)
            case "-":
                shorter = [step for step in INTERVALS if step < self.interval]
                self.interval = shorter[-1] if shorter else self.interval
                return None if self.frozen else Refresh()
            case "p" if self.selected is not None and self.view != "workers":
                paused = self.selected in self.paused
                self.ask = Ask(
                    f"{'resume' if paused else 'pause'} {self.selected}?",
                    SetPaused(self.selected, not paused),
                )
            case "w":
                self.view = "queues" if self.view == "workers" else "workers"
                self.scrolled = 0
        return None

    def _in_queues(self, key: str) -> Order | None:
        match key:
            case "enter" if self.selected is not None:
                self.view, self.scrolled = "queue", 0
                return Look(self.selected)
            case "/":
                self.filtering = True
            case "escape":
                self.pattern = ""
            case "s" | ">" | "right":
                self._choose_column(1)
            case "<" | "left":
                self._choose_column(-1)
            case "r":
                self.reverse = not self.reverse
            case _:
                if step := self._step(key):
                    index = 0 if self.selected is None else self.names.index(self.selected)
                    self.selected = self.names[max(0, min(index + step, len(self.names) - 1))]
        return None

    def _inside(self, key: str) -> Order | None:
        if key in {"escape", "enter", "backspace", "left"}:
            self.view = "queues"
        self.scrolled = max(0, self.scrolled + self._step(key))
        return None

    def _step(self, key: str) -> int:
        if not self.names and self.view == "queues":
            return 0
        far = 10**6
        steps = {
            "up": -1, "k": -1, "down": 1, "j": 1, "page up": -self.page, "page down": self.page,
            "home": -far, "g": -far, "end": far, "G": far,
        }  # fmt: skip
        return steps.get(key, 0)

    def _choose_column(self, step: int) -> None:
        self.column = COLUMNS[(COLUMNS.index(self.column) + step) % len(COLUMNS)]
        self.reverse = False

    def _edit_filter(self, key: str) -> None:
        match key:
            case "enter" | "up" | "down":
                self.filtering = False
            case "escape":
                self.filtering, self.pattern = False, ""
            case "backspace":
                self.pattern = self.pattern[:-1]
            case "erase line":
                self.pattern = ""
            case _ if len(key) == 1:
                self.pattern += key

    def _answer(self, key: str) -> Order | None:
        """Yes by y alone: Enter is pressed too easily."""
        if key in {"page up", "page down", "up", "down", "redraw"}:
            return None
        ask, self.ask = self.ask, None
        return ask.order if ask is not None and key in {"y", "Y"} else None
