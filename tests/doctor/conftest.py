"""A database with a queue that is well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock

from .examining import Patient


@pytest.fixture
def patient(database: str) -> Patient:
    return Patient(database)


@pytest.fixture
def queue(database: str) -> Iterator[penstock.Client]:
    """A client of the database, with a queue that has a consumer and is maintained."""
    with penstock.Client(database, maintain=False) as client:
        client.create_queue("billing", notify=False)
        client.send_many("billing", range(10))
        for message in client.consume("billing", batch_size=5, wait=0):
            with message:
                pass
        while not client.diagnose_engine().maintained_at:
            client.maintain()
        yield client
