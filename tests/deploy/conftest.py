"""Programs that check the files of deploy/, and a dashboard with something in every metric."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.debian import installed, unpacked

FreePort = Callable[[], int]


@pytest.fixture(scope="session")
def packages(pytestconfig: pytest.Config) -> Path:
    """Where packages are unpacked: they are kept for the next run."""
    assert pytestconfig.cache is not None
    return pytestconfig.cache.mkdir("debian")


@pytest.fixture(scope="session")
def promtool(packages: Path) -> Path:
    return unpacked("prometheus", "promtool", folder=packages)


@pytest.fixture(scope="session")
def prometheus(packages: Path) -> Path:
    return unpacked("prometheus", "prometheus", folder=packages)


@pytest.fixture(scope="session")
def systemd_analyze(packages: Path) -> Path:
    return installed("systemd", "systemd-analyze", folder=packages)


@pytest.fixture(scope="session")
def free_port() -> FreePort:
    """Finds a port that no program listens on."""
    given = set[int]()

    def find() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in given:
                given.add(port)
                return port

    return find


@pytest.fixture
def bare_environment(tmp_path: Path) -> dict[str, str]:
    """What a process has that is started by systemd or in a container: no variable of the tests."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
