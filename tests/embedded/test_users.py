"""The server's user: an ordinary user, root, and root where user namespaces are not permitted."""

import os
import pwd
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.embedded import find_binaries
from tests.embedded.processes import answer, eventually, is_gone, owner, postmaster, processes_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

SYSTEM_PYTHON = Path("/usr/bin/python3")
NOBODY = pwd.getpwnam("nobody").pw_uid

# Without the right to give files capabilities, root cannot map itself into a user namespace.
WITHOUT_NAMESPACES = ("setpriv", "--bounding-set=-setfcap", "--inh-caps=-setfcap", sys.executable)


def _environment(home: Path) -> dict[str, str]:
    packages = os.pathsep.join([str(Path(penstock.__file__).parents[1]), *site.getsitepackages()])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON"))}
    return {**kept, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": packages}


def _may(user: int, *command: str | Path, environment: dict[str, str]) -> bool:
    answer = subprocess.run(
        command,
        user=user,
        group=user,
        extra_groups=[],
        env=environment,
        cwd="/",
        capture_output=True,
        check=False,
    )
    return answer.returncode == 0


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that others can get at, as pytest's own cannot be."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/var/tmp"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("user", [NOBODY, 54321], ids=["nobody", "unknown"])
def test_an_ordinary_user(user: int, home: Path) -> None:
    """The second one has no name; PostgreSQL wants one, and gets it in a user namespace."""
    own = home / "own"
    own.mkdir()
    os.chown(own, user, user)
    environment = _environment(own)
    if not SYSTEM_PYTHON.exists():
        pytest.skip("there is no Python for other users")
    if not _may(user, SYSTEM_PYTHON, "-c", "import penstock.embedded, psycopg", environment=environment):
        pytest.skip("the packages are not for other users, or not for the system's Python")
    if user == 54321 and not _may(user, "unshare", "--user", "true", environment=environment):
        pytest.skip("user namespaces are not permitted")
    python = [SYSTEM_PYTHON]
    with owner("shared", own / "shared", python=python, environment=environment, user=user) as process:
        assert process.data.stat().st_uid == user
        assert Path(f"/proc/{postmaster(process.data)}").stat().st_uid == user
        assert answer(process.dsn) == 1
        assert process.finish() == 0
    eventually(lambda: not processes_in(own), "the server has stopped")


def test_root_has_another_identity_to_the_server_alone() -> None:
    with owner("throwaway", "fsync=off") as process:
        main = postmaster(process.data)
        mapping = Path(f"/proc/{main}/uid_map").read_text().split()
        if mapping[0] == "0":
            pytest.skip("user namespaces are not permitted")
        assert mapping[1:] == ["0", "1"]
        assert process.data.stat().st_uid == 0
        status = Path(f"/proc/{main}/status").read_text()
        assert "CapEff:\t0000000000000000" in status


@pytest.fixture
def _no_namespaces() -> None:
    refused = subprocess.run(
        [*WITHOUT_NAMESPACES[:-1], "unshare", "--user", "--map-user=1", "true"],
        check=False,
        capture_output=True,
    )
    if refused.returncode == 0:
        pytest.skip("user namespaces cannot be refused here")


@pytest.mark.usefixtures("_no_namespaces")
def test_root_without_user_namespaces(home: Path) -> None:
    environment = _environment(home)
    with owner("throwaway", "fsync=off", python=WITHOUT_NAMESPACES, environment=environment) as process:
        user = process.data.stat().st_uid
        assert user != 0
        assert Path(f"/proc/{postmaster(process.data)}").stat().st_uid == user
        assert process.directory.stat().st_uid == 0
        assert answer(process.dsn) == 1
        assert answer(process.about["tcp_dsn"]) == 1
        directory = process.directory
        process.kill()
        eventually(lambda: is_gone(directory), "server and directory are gone")


@pytest.mark.slow
@pytest.mark.usefixtures("_no_namespaces")
def test_root_without_user_namespaces_and_programs_of_its_own(home: Path) -> None:
    """The programs are where only root can read them: the server gets a copy, the original stays as it is."""
    private = home / "private"
    private.mkdir(mode=0o700)
    install = find_binaries().directory.parent
    package = private / install.parent.name
    shutil.copytree(install, package / install.name, ignore=shutil.ignore_patterns("include"))
    libraries = install.parent.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, private / libraries.name)
    programs = package / install.name / "bin"
    environment = {**_environment(home), "PENSTOCK_PG_BIN": str(programs)}
    directory = home / "shared"
    for _ in range(2):  # new, and found again
        with owner("shared", directory, python=WITHOUT_NAMESPACES, environment=environment) as process:
            assert process.data.stat().st_uid != 0
            assert answer(process.dsn) == 1
            answer(process.dsn, "create extension if not exists hstore")
        eventually(lambda: not processes_in(directory), "the server has stopped")
    assert private.stat().st_mode & 0o777 == 0o700
    assert private.stat().st_uid == 0


@pytest.mark.usefixtures("_no_namespaces")
def test_root_without_user_namespaces_cannot_share_in_its_home(home: Path) -> None:
    program = "from penstock.embedded.shared import default_directory; print(default_directory())"
    found = subprocess.run(
        [*WITHOUT_NAMESPACES, "-c", program],
        env=_environment(home),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "/var/lib/penstock/server"


@pytest.mark.usefixtures("_no_namespaces")
def test_root_without_user_namespaces_in_a_closed_directory(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    directory, environment = closed / "shared", _environment(home)
    with owner("shared", directory, python=WITHOUT_NAMESPACES, environment=environment) as process:
        assert process.process.wait(30) != 0
        assert process.process.stderr is not None
        assert f"cannot be run in {directory} by user" in process.process.stderr.read()
    assert closed.stat().st_mode & 0o777 == 0o700
