"""The cases, a module for each part of the engine."""

from __future__ import annotations

from ..case import Case
from . import hot, leases

CASES: list[Case] = [*hot.CASES, *leases.CASES]
