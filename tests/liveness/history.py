"""What happened in a run: publishers, handlers and the runner write one line for each event."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Published:
    """A message was committed. kind: of its handler. delay and ttl count from the commit."""

    name: ClassVar[str] = "published"
    at: float
    message: int
    queue: str
    task: str
    kind: str = "async"
    tenant: str | None = None
    delay: float = 0.0
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A handler began."""

    name: ClassVar[str] = "started"
    at: float
    message: int
    worker: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler ended: done; given up; or to be delivered again, after a delay."""

    name: ClassVar[str] = "ended"
    at: float
    message: int
    worker: int
    is_last: bool = True
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Up:
    """A worker works: which tasks it knows, and how many handlers of each kind it runs at once."""

    name: ClassVar[str] = "up"
    at: float
    worker: int
    tasks: list[str]
    slots: dict[str, int]


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker was killed, or stopped."""

    name: ClassVar[str] = "gone"
    at: float
    worker: int


Event = Published | Started | Ended | Up | Gone
EVENTS: dict[str, type[Event]] = {each.name: each for each in (Published, Started, Ended, Up, Gone)}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the queues and workers of a run were set to.

    max_active: by queue. tenant_max_active: of each tenant, by queue. lease: seconds.
    """

    lease: float
    max_active: dict[str, int] = field(default_factory=dict)
    tenant_max_active: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """All events of a run, in order, and when it was over."""

    events: list[Event]
    limits: Limits
    end: float


class Log:
    """A file of events that many processes append to. A line is one write: a kill leaves no half of one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *events: Event) -> None:
        for event in events:
            os.write(self._file, json.dumps({"event": event.name} | asdict(event)).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(paths: Iterable[Path]) -> list[Event]:
    """The events of some files, by time."""
    lines = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
    events = [EVENTS[line.pop("event")](**line) for line in lines]
    return sorted(events, key=lambda event: event.at)
