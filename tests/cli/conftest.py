"""The command with a database of its own, and a client to see what it did there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

from .command import Command
from .inside import Inside


@pytest.fixture
def command(database18: str, tmp_path: Path) -> Command:
    """`penstock`, with the schema installed where it connects to."""
    return Command(database18, tmp_path)


@pytest.fixture
def inside(command: Command) -> Inside:
    """The same within this process."""
    return Inside(command)


@pytest.fixture
def queue(database18: str) -> Iterator[penstock.Client]:
    """A client of the same database."""
    with penstock.connect(database18) as client:
        yield client
