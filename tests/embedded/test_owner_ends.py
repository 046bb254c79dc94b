"""A throwaway server goes with its owner, however that one ends, and not before."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg

from penstock.embedded import find_binaries, throwaway
from tests.embedded.processes import (
    answer,
    eventually,
    is_gone,
    owner,
    postmaster,
    processes_in,
    supervisor,
)

# The owner forks, says the child's id and waits; the child only lives on.
FORKING = """
import os, sys, time
from penstock.embedded import EmbeddedError, throwaway
with throwaway(settings={"fsync": "off"}) as server:
    child = os.fork()
    if child == 0:
        try:
            server.stop()
        except EmbeddedError as error:
            os.write(1, f"{error}\\n".encode())
        time.sleep(600)
    os.write(1, f"{child} {server.data_directory.parent}\\n".encode())
    sys.stdin.read()
"""


def test_killed_while_the_server_works() -> None:
    with owner("throwaway", "fsync=off") as process:
        directory = process.directory
        assert len(processes_in(directory)) > 5
        with ExitStack() as stack:
            observer, waiting, looping = (
                stack.enter_context(closing(psycopg.connect(process.dsn, autocommit=True))) for _ in range(3)
            )
            observer.execute("select pg_advisory_lock(1)")
            waiting.pgconn.send_query(b"select pg_advisory_lock(1)")
            looping.pgconn.send_query(b"do 'begin loop end loop; end'")
            at_work = "select count(*) from pg_stat_activity where state = 'active'"
            eventually(lambda: observer.execute(at_work.encode()).fetchone() == (3,), "both are at work")
            process.kill()
            eventually(lambda: is_gone(directory), "server and directory are gone")


def test_killed_while_the_server_starts(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for sign in ("*/data.new-*/base", "*/data/postmaster.pid"):
        with owner("throwaway", "fsync=off", environment=environment) as process:
            eventually(lambda sign=sign: list(tmp_path.glob(sign)), f"the start has come as far as {sign}")  # type: ignore[misc]
            process.kill()
        eventually(lambda: not list(tmp_path.iterdir()), "the directory is gone")
        eventually(lambda: not processes_in(tmp_path), "and all processes")


def test_ctrl_c_is_for_the_owner_alone() -> None:
    with owner("throwaway", "fsync=off") as process:
        before = (postmaster(process.data), supervisor(process.directory))
        os.killpg(process.process.pid, signal.SIGINT)
        assert answer(process.dsn) == 1
        assert (postmaster(process.data), supervisor(process.directory)) == before
        directory = process.directory
        assert process.finish() == 0
        assert is_gone(directory)


def test_a_forked_child_does_not_keep_the_server() -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING], stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdout is not None
        lines = sorted([process.stdout.readline(), process.stdout.readline()])
        child, place = lines[0].split()
        try:
            assert "can start or stop it" in lines[1], "nor may it stop it"
            assert processes_in(Path(place))
            process.kill()
            eventually(lambda: is_gone(Path(place)), "server and directory are gone")
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_the_supervisor_is_killed() -> None:
    with throwaway(settings={"fsync": "off"}) as server:
        directory = server.data_directory.parent
        os.kill(supervisor(directory), signal.SIGKILL)
        eventually(lambda: not processes_in(directory), "the kernel has stopped the server")
    assert not directory.exists()


def test_what_a_killed_supervisor_left_is_removed_by_the_next(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    (tmp_path / "penstock-unrelated").mkdir()
    with owner("throwaway", "fsync=off", environment=environment) as left:
        kept = supervisor(left.directory)
        os.kill(kept, signal.SIGSTOP)  # so that it cannot clean up after its owner
        left.kill()
        os.kill(kept, signal.SIGKILL)
        eventually(lambda: not processes_in(left.directory), "the kernel has stopped the server")
        assert left.directory.exists()
    with owner("throwaway", "fsync=off", environment=environment) as first:
        eventually(lambda: not left.directory.exists(), "the next start has removed it")
        assert answer(first.dsn) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["penstock-unrelated"]


def test_sigterm_to_the_supervisor_is_an_end_in_order() -> None:
    with owner("throwaway", "fsync=off") as process:
        directory = process.directory
        os.kill(supervisor(directory), signal.SIGTERM)
        eventually(lambda: is_gone(directory), "server and directory are gone")


def test_nothing_outside_is_changed(tmp_path: Path) -> None:
    above = tmp_path / "private" / "temporary"
    above.mkdir(parents=True)
    above.parent.chmod(0o700)
    above.chmod(0o700)
    programs = find_binaries().directory
    watched = [*above.parents, above, programs, *programs.parents, programs / "postgres"]
    before = [(path, path.stat().st_mode, path.stat().st_uid) for path in watched]
    with owner("throwaway", "fsync=off", environment={**os.environ, "TMPDIR": str(above)}) as process:
        assert process.directory.is_relative_to(above)
    assert [(path, path.stat().st_mode, path.stat().st_uid) for path in watched] == before
