"""A throwaway server: what it is like, and that it can be stopped and started."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import EmbeddedError, Server, throwaway
from penstock.embedded.server import StopMode
from tests.embedded.processes import answer, eventually, is_down, is_gone, owner, postmaster, processes_in

QUICK = {"fsync": "off"}


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_reached_by_socket_and_by_password(server: Server) -> None:
    assert answer(server.dsn(), "show server_version_num").startswith(str(server.version))
    assert answer(server.tcp_dsn(), "select inet_server_addr()::text") == "127.0.0.1/32"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        answer(server.tcp_dsn().replace("postgres:", "postgres:not"))
    assert server.log_file.read_text()


def test_it_is_closed_to_others(server: Server) -> None:
    directory = server.data_directory.parent
    assert _mode(server.data_directory) == 0o700
    assert _mode(directory / "socket") == 0o700
    assert _mode(directory / "password") == 0o600
    assert _mode(directory) & 0o066 == 0


def test_the_encoding_is_utf8(server: Server) -> None:
    assert answer(server.dsn(), "show server_encoding") == "UTF8"
    collation = "select datcollate || ' ' || datctype from pg_database where datname = 'postgres'"
    assert answer(server.dsn(), collation) == "C.UTF-8 C.UTF-8"


def test_the_environment_does_not_matter() -> None:
    """With LANG unset, PostgreSQL's own choice would be SQL_ASCII."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LANG", "LC_"))}
    misleading = {"PGPORT": "1", "PGDATA": "/nowhere", "PGOPTIONS": "-c nonsense", "LC_TIME": "tlh_KL"}
    with owner("throwaway", "fsync=off", environment={**kept, **misleading}) as process:
        assert answer(process.dsn, "show server_encoding") == "UTF8"
        assert answer(process.dsn, "select upper('ñ')") == "Ñ"
        assert answer(process.dsn, "show lc_time") == "C.UTF-8"


def test_durability_is_postgresqls_own_unless_told_otherwise() -> None:
    with throwaway(settings={"work_mem": "5MB"}) as server:
        for name, expected in {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}.items():
            assert answer(server.dsn(), f"show {name}") == expected
        assert answer(server.dsn(), "show work_mem") == "5MB"
        assert answer(server.dsn(), "show max_prepared_transactions") == "0"


def test_it_is_gone_afterwards_even_if_the_block_fails() -> None:
    directories = []

    def fail() -> None:
        with throwaway(settings=QUICK) as server:
            directories.append(server.data_directory.parent)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert is_gone(directories[0])


def test_a_failing_start_shows_the_log_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        pytest.raises(EmbeddedError, match=r'unrecognized configuration parameter "no_such_setting"'),
        throwaway(settings={"no_such_setting": "1"}),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    assert not processes_in(tmp_path)


def test_where_it_listens_is_not_for_the_caller_to_say() -> None:
    with pytest.raises(EmbeddedError, match="port"), throwaway(settings={"port": "5432"}):
        pass


def test_a_supervisor_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(EmbeddedError, match="has ended"), throwaway():
        pass
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(EmbeddedError, match="/no/such/python"), throwaway():
        pass


def test_stop_and_start_keep_address_and_data() -> None:
    with throwaway(settings=QUICK) as server:
        before = (server.dsn(), server.tcp_dsn())
        answer(server.dsn(), "create table kept as select 42 as n")
        modes: tuple[StopMode, ...] = ("immediate", "fast")
        for mode in modes:
            server.stop(mode)
            assert is_down(server.dsn())
            server.stop()
            server.start()
            server.start()
            assert answer(server.dsn(), "select n from kept") == 42
            assert (server.dsn(), server.tcp_dsn()) == before
        log = server.log_file.read_text()
        assert log.count("automatic recovery in progress") == 1, "only after the immediate stop"

        os.kill(postmaster(server.data_directory), signal.SIGKILL)
        eventually(lambda: is_down(server.dsn()), "the killed server is down")
        server.start()
        assert answer(server.dsn(), "select n from kept") == 42


def test_two_at_once_from_threads_that_end() -> None:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: stack.enter_context(throwaway(settings=QUICK)), range(2))
        pool.shutdown()
        assert first.dsn() != second.dsn()
        answer(first.dsn(), "create table here (n int)")
        assert answer(second.dsn(), "select to_regclass('here')") is None
        assert answer(first.tcp_dsn(), "select 'here'::regclass::text") == "here"


@pytest.mark.parametrize(
    "name",
    ["with a space", "comma,quote\"'\\%20@ñ and very long " + "x" * 120],
    ids=["space", "odd and long"],
)
def test_any_path_will_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tmp_path / name
    parent.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(parent))
    with throwaway(settings=QUICK) as server:
        assert server.data_directory.is_relative_to(parent)
        assert answer(server.dsn()) == 1
        assert answer(server.tcp_dsn()) == 1
        socket_directory = Path(answer(server.dsn(), "show unix_socket_directories").strip('"'))
        assert _mode(socket_directory) == 0o700
        assert len(os.fsencode(socket_directory / ".s.PGSQL.65535")) <= 107
        server.stop()
        server.start()
        assert answer(server.dsn()) == 1
    assert list(parent.iterdir()) == []
    assert not socket_directory.exists()


def test_a_database_name_may_be_odd(server18: Server) -> None:
    name = "a b/c?d=e&f%41ü"
    answer(server18.dsn(), f'create database "{name}"')
    try:
        assert answer(server18.dsn(name), "select current_database()") == name
        assert answer(server18.tcp_dsn(name), "select current_database()") == name
    finally:
        answer(server18.dsn(), f'drop database "{name}" with (force)')
