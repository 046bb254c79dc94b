"""The pages: a module each, with its data and its view functions."""

from __future__ import annotations

from . import (
    audit,
    dead,
    doctor,
    groups,
    message,
    messages,
    operations,
    overview,
    queue,
    schedules,
    search,
    settings,
    tenants,
    topics,
    workers,
)

__all__ = ["MODULES"]

MODULES = (
    *(overview, queue, messages, message, tenants, settings),
    *(dead, operations, search, topics, groups, schedules, workers, doctor, audit),
)
