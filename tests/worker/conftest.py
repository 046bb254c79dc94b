"""A stage for workers: an app in a folder, a database, and the processes that a test starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, database18: str) -> Iterator[Stage]:
    """Starts workers of an app that the test writes; all that is left of them ends with the test."""
    one = Stage(tmp_path, database18)
    try:
        yield one
    finally:
        one.close()
