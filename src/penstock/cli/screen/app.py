"""The loop of the screen: what is due is read, what was read is shown, what is pressed is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from penstock._sync.client import Client
from penstock.cli.failures import as_failure
from penstock.errors import QueueNotFound

from ..output.cells import brief
from .background import Answer, Background
from .choices import Choices, Look, Order, Quit, Refresh, SetPaused
from .snapshot import Details, Snapshot, read, read_details, read_vacuum
from .terminal import Terminal
from .view import Scene, picture

__all__ = ["App"]

# The second snapshot comes early: only then there are rates.
FIRST_SECONDS = 1.0
# However slow the statistics are, they keep the database busy for no more than a quarter of the time.
REST = 3.0
NOTE_SECONDS = 5.0
SILENCE_SECONDS = 3.0

VACUUM_SECONDS = 10.0

SNAPSHOT, DETAILS, VACUUM, ACTION = "snapshot", "details", "vacuum", "action"


class App:
    """A screen of one database. A client that does not try again by itself: what fails is to be seen."""

    def __init__(self, client: Client, scene: Scene, choices: Choices, terminal: Terminal) -> None:
        self._client = client
        self._scene = scene
        self._choices = choices
        self._terminal = terminal
        self._background = Background(terminal.wake)
        self._next_at = 0.0
        # The user asked for it, or did something whose effect is to be shown.
        self._is_wanted = False
        self._vacuum_at = 0.0
        self._note_until = 0.0
        self._shown_at = datetime.now()

    def run(self) -> None:
        """Until the user has seen enough."""
        while True:
            for answer in self._background.answers():
                self._take(answer)
            self._read_if_due()
            self._update_notes()
            self._terminal.paint(picture(self._scene, self._choices, self._shown_at, *self._terminal.size))
            for key in self._terminal.keys(self._pause()):
                order = self._choices.press(key)
                if isinstance(order, Quit):
                    return
                if order is not None:
                    self._carry_out(order)

    def _pause(self) -> float:
        """Until there is something to do, if nothing happens."""
        now = time.monotonic()
        waits = [60.0]
        if self._background.waited(SNAPSHOT):
            waits.append(1.0)  # and tell how long it takes
        elif not self._choices.frozen:
            waits.append(self._next_at - now)
        if self._scene.note:
            waits.append(self._note_until - now)
        return max(0.0, min(waits))

    # Reading

    def _read_if_due(self) -> None:
        is_due = not self._choices.frozen and time.monotonic() >= self._next_at
        if is_due or self._is_wanted:
            since = self._scene.snapshot.at if self._scene.snapshot is not None else None
            # One that is under way may be from before whatever was done.
            if self._background.start(SNAPSHOT, partial(read, self._client, since)):
                self._is_wanted = False

    def _read_selected(self) -> None:
        """Read what is in the selected queue, if that is what is shown."""
        snapshot, name = self._scene.snapshot, self._choices.selected
        if self._choices.view != "queue" or snapshot is None or name is None:
            return
        if name in snapshot.queues:
            self._background.start(DETAILS, partial(read_details, self._client, snapshot.queues[name]))

    def _take(self, answer: Answer) -> None:
        if answer.job == SNAPSHOT:
            pause = max(self._choices.interval - answer.seconds, REST * answer.seconds)
            self._next_at = time.monotonic() + pause
        if answer.error is not None:
            self._failed(answer.job, answer.error)
            return
        match answer.result:
            case Snapshot() as snapshot:
                self._take_snapshot(snapshot)
            case Details() as details:
                # Another queue may be looked at by now.
                if details.queue.name == self._choices.selected:
                    self._scene.details = details
                else:
                    self._read_selected()
            case str() as held if answer.job == VACUUM:
                self._scene.vacuum = held
            case str() as done:
                self._note(done)
                self._is_wanted = True

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        is_first = self._scene.snapshot is None
        self._scene.history.add(snapshot)
        self._scene.problem = ""
        self._shown_at = datetime.now()
        if is_first:
            self._next_at = min(self._next_at, time.monotonic() + FIRST_SECONDS)
        if self._choices.view == "queue" and self._choices.selected not in snapshot.queues:
            self._choices.view = "queues"
            self._note(f"queue {self._choices.selected} is not there any more")
        self._read_selected()
        if time.monotonic() >= self._vacuum_at:
            self._vacuum_at = time.monotonic() + VACUUM_SECONDS
            self._background.start(VACUUM, partial(read_vacuum, self._client))

    def _failed(self, job: str, error: Exception) -> None:
        failure = as_failure(error)
        if failure is None:
            raise error
        if job == SNAPSHOT:
            self._scene.problem = f"trying again: {failure.message}"
        elif job == ACTION or (job == DETAILS and not isinstance(error, QueueNotFound)):
            self._note(failure.message)

    def _update_notes(self) -> None:
        waited = self._background.waited(SNAPSHOT)
        if waited > max(SILENCE_SECONDS, self._choices.interval):
            self._scene.problem = f"the database has not answered for {brief(int(waited))}"
        if self._scene.note and time.monotonic() >= self._note_until:
            self._scene.note = ""

    def _note(self, text: str) -> None:
        self._scene.note = text
        self._note_until = time.monotonic() + NOTE_SECONDS

    # Doing

    def _carry_out(self, order: Order) -> None:
        match order:
            case Refresh():
                self._is_wanted = True
            case Look():
                self._scene.details = None
                self._read_selected()
            case SetPaused(name, paused):
                if not self._background.start(ACTION, partial(_set_paused, self._client, name, paused)):
                    self._note("the last thing you asked for is not done yet")
            case _:
                pass


def _set_paused(client: Client, queue_name: str, paused: bool) -> str:
    change: Callable[[str], Any] = client.pause_queue if paused else client.resume_queue
    change(queue_name)
    return f"queue {queue_name} is paused" if paused else f"queue {queue_name} delivers"
