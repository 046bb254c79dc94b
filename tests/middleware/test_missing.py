"""Without the library that a middleware needs, its import says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEEDS = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry", "sentry": "sentry_sdk"}


@pytest.mark.parametrize("name", NEEDS)
def test_it_names_the_command(name: str) -> None:
    code = f"import sys; sys.modules[{NEEDS[name]!r}] = None; import penstock.middleware.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: penstock.middleware.{name} needs ")
    assert last.endswith(f": pip install 'penstock[{name}]'")


def test_the_others_need_none() -> None:
    code = f"""
import sys
import penstock, penstock.middleware, penstock.middleware.logging, penstock.middleware.metrics
print(*set({list(NEEDS.values())!r}) & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")
