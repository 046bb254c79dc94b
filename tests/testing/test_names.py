"""The names of penstock.testing: a change here is a change of the API."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import testing

WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = sys.modules["_pytest"] = None
from penstock import testing
for name in testing.__all__:
    getattr(testing, name)
"""


def test_of_the_package() -> None:
    assert testing.__all__ == [
        "Clock",
        "DatabaseServer",
        "Dead",
        "DrainError",
        "Enqueued",
        "Ran",
        "TaskTester",
        "database",
        "server",
    ]
    assert dir(testing) == testing.__all__
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = testing.nonsense


def test_it_does_not_need_pytest() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_PYTEST], check=True)
