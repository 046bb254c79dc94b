"""A short run of everything at once, with workers that are killed: no deliverable message waits for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from .history import Ended, Gone, Published
from .runner import run


@pytest.mark.slow
def test_every_deliverable_message_starts_soon(database18: str, tmp_path: Path) -> None:
    outcome = run(database18, tmp_path, seconds=10, seed=7)
    events = outcome.history.events
    assert sum(isinstance(event, Published) for event in events) > 300
    assert sum(isinstance(event, Ended) for event in events) > 100
    assert any(isinstance(event, Gone) for event in events)
    shown = "\n".join(str(wait) for wait in outcome.late[:5])
    assert not outcome.late, f"{outcome}\n{shown}"
