"""What `penstock sql` prints, installed by psql itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import schema
from penstock.embedded import find_binaries

from .catalog import describe
from .conftest import Cluster, Open


@pytest.fixture
def psql() -> str:
    beside = find_binaries().directory / "psql"
    found = str(beside) if beside.exists() else shutil.which("psql")
    if not found:
        pytest.skip("psql is not here")
    return found


def _penstock_sql(path: Path) -> Path:
    command = [sys.executable, "-m", "penstock.cli", "sql", "--output", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def _run(psql: str, dsn: str, file: Path) -> subprocess.CompletedProcess[str]:
    command = [psql, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(file), dsn]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_psql_installs_the_same(cluster: Cluster, open_connection: Open, psql: str, tmp_path: Path) -> None:
    file = _penstock_sql(tmp_path / "penstock.sql")
    dsn = cluster.make_database()
    by_install, by_psql = open_connection(cluster.make_database()), open_connection(dsn)
    schema.install(by_install)
    for _ in range(2):
        answer = _run(psql, dsn, file)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
        assert describe(by_psql) == describe(by_install)
    assert not schema.install(by_psql).changed


def test_psql_is_refused_by_a_newer_schema(
    cluster: Cluster, open_connection: Open, psql: str, tmp_path: Path
) -> None:
    source = schema.load()
    newer = schema.Source("999.0", source.tables, source.functions, source.roles + "-- another")
    dsn = cluster.make_database()
    schema.install(open_connection(dsn), newer)
    file = _penstock_sql(tmp_path / "penstock.sql")
    answer = _run(psql, dsn, file)
    assert answer.returncode != 0
    assert 'ERROR:  the schema penstock in database "install_' in answer.stderr
    assert f"HINT:  {schema.UPGRADE}" in answer.stderr


def test_it_is_plain_sql() -> None:
    # A driver takes it in one piece, so it may not need psql.
    assert [line for line in schema.script().splitlines() if line.startswith("\\")] == []
