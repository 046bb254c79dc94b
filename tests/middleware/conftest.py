"""Sentry, started for one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk

from .sent import Kept, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Sentry for this test."""

    def init(**options: Any) -> Kept:
        transport = Kept()
        given: dict[str, Any] = {
            "dsn": "https://key@example.org/1",
            "transport": transport,
            "default_integrations": False,
            "auto_enabling_integrations": False,
            "traces_sample_rate": 1.0,
        }
        sentry_sdk.init(**given | options)
        return transport

    yield init
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)
    sentry_sdk.get_isolation_scope().clear()
    sentry_sdk.get_current_scope().clear()
