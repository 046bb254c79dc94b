"""Suspects: messages whose last delivery was lost with its worker. One of them may have killed the worker."""

from __future__ import annotations

from penstock.concurrency import now

from .run import Run

__all__ = ["Suspects"]

# After one lost delivery such messages take this share of the slots; after more, one runs at a time.
SHARE = 4
# While a message runs that was lost more than once, no other run begins, for this long.
ALONE_SECONDS = 10.0


class Suspects:
    """Keeps suspects apart, so that the one that kills the worker takes few others with it.

    Messages that are lost together run in ever smaller groups. The harmless ones end. The one that kills the
    worker is lost again each time, until the worker gives it up.
    """

    def __init__(self) -> None:
        self._held: dict[Run, float] = {}
        # Until then other runs have their turn: for as long as a suspect ran alone.
        self._rest_until = 0.0

    def room(self, slots: int) -> int:
        """How many more suspects may run in a lane with so many slots."""
        self._forget_ended()
        if any(_is_grave(run) for run in self._held):
            return 0
        return max(0, max(1, slots // SHARE) - len(self._held))

    def accept(self, run: Run, slots: int) -> bool:
        """Whether a suspect may run now. If so, it counts as running."""
        room = self.room(slots)
        if room == 0 or (_is_grave(run) and (self._held or now() < self._rest_until)):
            return False
        self._held[run] = now()
        return True

    @property
    def alone_for(self) -> float:
        """For how many seconds no other run may begin, because of one that was lost more than once."""
        self._forget_ended()
        since = [at for run, at in self._held.items() if _is_grave(run)]
        return max(0.0, since[0] + ALONE_SECONDS - now()) if since else 0.0

    def _forget_ended(self) -> None:
        for run in [run for run in self._held if run.is_over]:
            began_at = self._held.pop(run)
            if _is_grave(run):
                self._rest_until = now() + min(now() - began_at, ALONE_SECONDS)


def _is_grave(run: Run) -> bool:
    return run.claimed.lost_deliveries > 1
