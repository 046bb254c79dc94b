"""A server that several processes share: there while one of them lives, and started again from any wreck."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.embedded import EmbeddedError, shared
from penstock.embedded.shared import default_directory, wait_until_stopped
from tests.embedded.processes import (
    answer,
    eventually,
    holders_of,
    is_down,
    owner,
    postmaster,
    processes_in,
    supervisor,
)

# The user forks a child that lives on, and ends.
FORKING = """
import os, sys, time
from pathlib import Path
from penstock.embedded import shared
with shared(directory=Path(sys.argv[1])) as server:
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(600)
    print(child, flush=True)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a server has been before, with a table."""
    directory = tmp_path_factory.mktemp("made") / "shared server"
    with shared(directory=directory) as server:
        answer(server.dsn(), "create table kept as select 42 as n")
    return directory


@pytest.fixture
def directory(made: Path) -> Iterator[Path]:
    """That directory, without users before and after."""
    eventually(lambda: not processes_in(made), "the server before has stopped")
    yield made
    eventually(lambda: not processes_in(made), "the server has stopped")


def test_it_starts_in_less_than_a_second(directory: Path) -> None:
    took, was_quick = [], []
    for _ in range(3):
        begin = time.monotonic()
        with shared(directory=directory) as server:
            took.append(time.monotonic() - begin)
            # Where the machine is busy, Python alone takes long to start.
            was_quick.append(took[-1] < 1 or took[-1] < 3 * start_of_python())
            assert answer(server.dsn(), "select n from kept") == 42
            assert answer(server.tcp_dsn()) == 1
            assert server.version == 18
    assert any(was_quick), took


def start_of_python() -> float:
    """How long a process takes that imports what a server is started with; a third of a second at rest."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import penstock.embedded"], check=True)
    return time.monotonic() - begin


def test_the_last_one_out_stops_it(directory: Path) -> None:
    with owner("shared", directory) as first, owner("shared", directory) as second:
        main = postmaster(first.data)
        assert (first.dsn, first.about["tcp_dsn"]) == (second.dsn, second.about["tcp_dsn"])
        assert first.finish() == 0
        with shared(directory=directory) as server:
            assert second.finish() == 0
            assert answer(server.dsn()) == 1
            assert postmaster(server.data_directory) == main
    eventually(lambda: not processes_in(directory), "the server has stopped")
    assert "database system is shut down" in server.log_file.read_text().splitlines()[-1], "in good order"
    assert not (directory / "state.json").exists()


def test_a_user_that_leaves_learns_whether_the_server_stops(directory: Path) -> None:
    with shared(directory=directory) as server:
        with shared(directory=directory) as again:
            pass
        assert not wait_until_stopped(again, 20), "there is another user"
        assert answer(server.dsn()) == 1
    assert wait_until_stopped(server, 20)
    assert not processes_in(directory)


def test_a_killed_user_does_not_keep_it(directory: Path) -> None:
    with owner("shared", directory) as first, owner("shared", directory) as second:
        assert answer(second.dsn) == 1
        first.kill()
        assert answer(second.dsn) == 1
        second.kill()
        eventually(lambda: not processes_in(directory), "the server has stopped")


def test_a_user_that_comes_while_it_stops_waits_and_starts_it(directory: Path) -> None:
    for _ in range(3):
        with shared(directory=directory) as server:
            assert answer(server.dsn()) == 1
        # No pause: the one before is just about to stop.


def test_many_start_it_at_once(directory: Path) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(owner("shared", directory)) for _ in range(4)]
        assert len({user.dsn for user in users}) == 1
        assert len({answer(user.dsn, "select pg_postmaster_start_time()") for user in users}) == 1
        assert len(holders_of(directory / "supervisor.lock")) == 1


def test_a_forked_child_counts_as_a_user(directory: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", FORKING, directory], stdout=subprocess.PIPE, text=True, check=True, timeout=30
    )
    child = int(process.stdout)
    main = postmaster(directory / "data")
    with shared(directory=directory) as server:
        assert postmaster(server.data_directory) == main
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not processes_in(directory), "the server has stopped")


def test_its_supervisor_is_killed(directory: Path) -> None:
    with shared(directory=directory) as server:
        pid = supervisor(directory)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: pid not in processes_in(directory), "the supervisor is dead")
        server.start()
        assert answer(server.dsn(), "select n from kept") == 42
        with shared(directory=directory) as second:
            assert second.dsn() == server.dsn()


def test_its_main_process_is_killed(directory: Path) -> None:
    with shared(directory=directory) as server:
        before = answer(server.dsn(), "select pg_postmaster_start_time()")
        os.kill(postmaster(server.data_directory), signal.SIGKILL)
        eventually(lambda: not is_down(server.dsn()), "the supervisor has started it again")
        server.start()
        assert answer(server.dsn(), "select pg_postmaster_start_time()") > before
        assert answer(server.dsn(), "select n from kept") == 42


def test_a_pid_that_belongs_to_another_process_by_now(directory: Path) -> None:
    """As after a reset, where the main process of the killed server had the id that this process has now."""
    (directory / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{directory}/data\n")
    with shared(directory=directory) as server:
        assert answer(server.dsn(), "select n from kept") == 42


def test_it_cannot_be_stopped_by_one_of_its_users(directory: Path) -> None:
    with shared(directory=directory) as server:
        with pytest.raises(EmbeddedError, match="is shared"):
            server.stop()
        assert answer(server.dsn()) == 1


def test_a_directory_of_another_version_is_refused(directory: Path) -> None:
    version = directory / "data" / "PG_VERSION"
    version.write_text("14\n")
    try:
        with pytest.raises(EmbeddedError) as raised, shared(directory=directory):
            pass
        for part in (
            "made by PostgreSQL 14",
            "are PostgreSQL 18",
            str(directory),
            "PENSTOCK_PG_BIN",
            "pg_dumpall",
        ):
            assert part in str(raised.value)
    finally:
        version.write_text("18\n")
    with shared(directory=directory) as server:
        assert answer(server.dsn(), "select n from kept") == 42


def test_a_start_that_was_killed_half_way_is_made_good(tmp_path: Path) -> None:
    directory = tmp_path / ("shared-" + "x" * 100)
    with owner("shared", directory) as starter:
        eventually(lambda: list(directory.glob("data.new-*/base")), "initdb is at work")
        os.kill(supervisor(directory), signal.SIGKILL)
        starter.kill()
    with owner("shared", directory) as starter:
        eventually(lambda: list(directory.glob("data.new-*/base")), "initdb is at work again")
        starter.kill()  # its supervisor goes on, finds no user, and gives up
        with shared(directory=directory) as server:
            assert answer(server.dsn()) == 1
            elsewhere = (directory / "socket").readlink()
        assert not list(directory.glob("data.new-*"))
    eventually(lambda: not processes_in(directory), "the server has stopped")
    assert not elsewhere.exists()


def test_a_directory_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(EmbeddedError, match="is not a data directory"), shared(directory=tmp_path):
        pass
    eventually(lambda: not processes_in(tmp_path), "the supervisor has ended")
    assert (tmp_path / "data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_a_directory_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(EmbeddedError, match="belongs to user 12345"), shared(directory=tmp_path):
        pass


def test_the_default_is_in_the_users_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if default_directory().is_relative_to("/var/lib"):
        pytest.skip("root's server cannot be in root's home here")
    assert default_directory() == tmp_path / "penstock" / "server"
