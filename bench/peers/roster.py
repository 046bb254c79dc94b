"""The peers in the worker's benchmark, and how the server is asked what is still to be done."""

from __future__ import annotations

import sys
from dataclasses import dataclass

OURS = "penstock"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One system of tasks: its program is bench/peers/<name>.py, what it needs in requirements-<name>.txt.

    unsettled: SQL that says whether tasks are left that are not durably done.
    """

    name: str
    title: str
    unsettled: str
    is_framework: bool = True
    python: tuple[int, int] = (3, 11)

    @property
    def is_ours(self) -> bool:
        return self.name == OURS

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, if so."""
        if sys.version_info < self.python:
            return f"needs Python {'.'.join(map(str, self.python))}"
        return None


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(
            OURS,
            "Penstock",
            "select exists (select from penstock.ready) or exists (select from penstock.active)",
        ),
        Contestant("pgqueuer", "PgQueuer", "select exists (select from pgqueuer)"),
        # Its view of all jobs takes a minute for ten thousand: what was handled counts, to its favour.
        Contestant("awa", "awa", "select false"),
        Contestant("chancy", "Chancy", "select exists (select from chancy_jobs where state <> 'succeeded')"),
        Contestant("procrastinate", "Procrastinate", "select exists (select from procrastinate_jobs)"),
        Contestant(
            "oban",
            "Oban",
            "select exists (select from oban_jobs where state <> 'completed')",
            python=(3, 12),
        ),
        Contestant("pgmq", "loop on pgmq", "select exists (select from pgmq.q_bench)", is_framework=False),
    )
}
