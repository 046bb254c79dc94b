"""The queues of one measurement: with names of their own, removed at its end."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from typing import Any

from penstock._sync.api import Api
from penstock.errors import QueueNotFound

__all__ = ["PREFIX", "Queues", "remove_leftovers"]

PREFIX = "penstock_bench_"
KEPT_FOR = timedelta(hours=1)
"""Longer than any measurement takes."""


class Queues:
    """Makes queues, and removes them.

    They are exclusive: where this process is killed before it has removed them, maintain() does, later.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._base = f"{PREFIX}{secrets.token_hex(4)}"
        self._names: list[str] = []

    def __str__(self) -> str:
        return f"{self._base}_*"

    def create(self, purpose: str, **settings: Any) -> str:
        """A queue; its name."""
        name = f"{self._base}_{purpose}"
        self._names.append(name)  # first: a Ctrl-C may come when it has been made
        self._api.create_queue(name, exclusive=True, keep_alive=KEPT_FOR, **settings)
        return name

    def remove(self) -> None:
        """Delete all of them."""
        for name in self._names:
            _delete(self._api, name)


def remove_leftovers(api: Api, now: datetime) -> list[str]:
    """Delete what measurements left that were killed more than an hour ago; the names."""
    found = [
        queue.name
        for queue in api.list_queues()
        if queue.name.startswith(PREFIX) and queue.exclusive and queue.created_at < now - KEPT_FOR
    ]
    return [name for name in found if _delete(api, name)]


def _delete(api: Api, name: str) -> bool:
    try:
        api.delete_queue(name)
    except QueueNotFound:
        return False
    return True
