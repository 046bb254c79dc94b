"""The cases, a module for each part of the engine. Each module has its list in CASES."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ..case import Case

CASES: list[Case] = [
    case for module in iter_modules(__path__) for case in import_module(f"{__name__}.{module.name}").CASES
]
