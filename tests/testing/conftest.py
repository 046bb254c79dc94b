"""The fixtures of the plugin are what these tests use, too."""

from __future__ import annotations

import pytest

from penstock.testing import TaskTester


@pytest.fixture
def tester(penstock_tasks: TaskTester) -> TaskTester:
    return penstock_tasks
