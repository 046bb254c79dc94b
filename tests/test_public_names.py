"""The names that users may import: a change here is a change of the API."""

from __future__ import annotations

import penstock
from penstock import errors, schema, settings


def test_of_the_package() -> None:
    assert penstock.__all__ == ["__version__"]


def test_of_the_modules() -> None:
    assert schema.__all__ == [
        "File",
        "Installed",
        "SchemaVersion",
        "Source",
        "check",
        "install",
        "installed_version",
        "load",
        "script",
        "uninstall",
    ]
    assert settings.__all__ == ["redact", "resolve_dsn", "scrub"]
    for module in (penstock, errors, schema, settings):
        assert sorted(module.__all__) == module.__all__
        assert all(hasattr(module, name) for name in module.__all__)
