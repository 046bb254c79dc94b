"""A client on the test's database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock import AsyncClient


@pytest.fixture
async def client(database18: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database18) as client:
        yield client
