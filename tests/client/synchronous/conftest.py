# Written by tools/unasync.py from tests/client/asynchronous/conftest.py:
# change that, run `make generate`.

"""A client on the test's database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import Client


@pytest.fixture
def client(database18: str) -> Iterator[Client]:
    with Client(database18) as client:
        yield client
