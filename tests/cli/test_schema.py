"""The command, run as its users run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from penstock import __version__, schema
from penstock.embedded import Server

PASSWORD = "hunter2"  # noqa: S105 - not a real one


def penstock(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command, without the variables of the tests' own environment."""
    unwanted = ("PG", "DATABASE_URL", "PENSTOCK_DATABASE_URL")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    command = [str(Path(sys.executable).with_name("penstock")), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean | environ, timeout=120
    )


def failure(answer: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that a user gets for a mistake."""
    assert answer.returncode == code, answer
    assert answer.stdout == ""
    assert "Traceback" not in answer.stderr
    lines = answer.stderr.splitlines()
    assert len(lines) == 1
    assert PASSWORD not in lines[0]
    return lines[0]


@pytest.fixture
def empty(server18: Server) -> Iterator[str]:
    """The DSN of a database without the schema."""
    with psycopg.connect(server18.dsn(), autocommit=True) as root:
        root.execute("create database cli_test")
        yield server18.dsn("cli_test")
        root.execute("drop database cli_test with (force)")


def test_help_is_quick_and_loads_no_driver() -> None:
    started = time.monotonic()
    answer = penstock("--help")
    elapsed = time.monotonic() - started
    assert answer.returncode == 0
    assert {"migrate", "sql", "version"} <= set(re.findall(r"^  (\w+)", answer.stdout, re.MULTILINE))
    loaded = subprocess.run(
        [sys.executable, "-c", "import penstock.cli, sys; print('psycopg' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout == "False\n"
    assert elapsed < 3, "0.1 s on an idle machine; 0.3 s is the promise"


@pytest.mark.parametrize("arguments", [["nothing"], ["migrate", "--nothing"], ["sql", "more"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    answer = penstock(*arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("Usage: penstock")


def test_migrate_installs_and_says_so(empty: str) -> None:
    answer = penstock("migrate", "--dsn", empty)
    assert (answer.returncode, answer.stderr) == (0, "")
    files = "  0001_core\n  0002_tasks\n  0003_diagnosis\n  0004_history\n  0005_operations\n"
    assert answer.stdout == f"cli_test: schema penstock {__version__} installed\n{files}"
    answer = penstock("migrate", PENSTOCK_DATABASE_URL=empty)
    assert answer.stdout == f"cli_test: schema penstock {__version__} already current\n"
    with psycopg.connect(empty) as connection:
        schema.check(connection)


def test_migrate_speaks_json(empty: str) -> None:
    first = penstock("migrate", "--json", DATABASE_URL=empty)
    assert json.loads(first.stdout) == {
        "database": "cli_test",
        "before": None,
        "after": __version__,
        "migration": schema.load().number,
        "migrations": [file.name for file in schema.load().tables],
        "changed": True,
    }
    again = json.loads(penstock("migrate", "--json", "--dsn", empty).stdout)
    assert (again["before"], again["migrations"], again["changed"]) == (__version__, [], False)


def test_version(empty: str) -> None:
    assert penstock("version").stdout == f"penstock {__version__}\n"
    assert penstock("--version").stdout == f"penstock {__version__}\n"
    assert json.loads(penstock("version", "--json").stdout) == {"package": __version__}
    assert penstock("version", "--dsn", empty).stdout == f"penstock {__version__}\nschema not installed\n"
    penstock("migrate", "--dsn", empty)
    shown = penstock("version", DATABASE_URL=empty).stdout
    assert shown == f"penstock {__version__}\nschema {__version__} (migration {schema.load().number})\n"
    facts = json.loads(penstock("version", "--json", "--dsn", empty).stdout)
    assert facts == {"package": __version__, "schema": __version__, "migration": schema.load().number}


def test_sql_goes_to_stdout_or_a_file(tmp_path: Path) -> None:
    answer = penstock("sql")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, schema.script(), "")
    file = tmp_path / "penstock.sql"
    answer = penstock("sql", "--output", str(file))
    assert (answer.returncode, answer.stdout) == (0, "")
    assert str(file) in answer.stderr
    assert file.read_text() == schema.script()
    assert "cannot write" in failure(penstock("sql", "--output", str(tmp_path / "no" / "file.sql")))


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        (f"postgresql://u:{PASSWORD}@127.0.0.1:1/d", "Connection refused"),
        (f"host=127.0.0.1 port=1 password={PASSWORD}", "Connection refused"),
        ("host=/nowhere", "No such file or directory"),
        (f"postgresql://u:{PASSWORD}%zz@h/d", "does not understand the DSN"),
        (f"postgresql://u:{PASSWORD}@{PASSWORD}@127.0.0.1:1/d", "no proper host and port"),
        (f"password=x {PASSWORD}", "does not understand the DSN"),
        ("nonsense", 'the DSN "nonsense"'),
        ("mysql://u@h/d", "must begin with postgresql://, not mysql://"),
    ],
)
def test_a_wrong_dsn_is_one_line(dsn: str, expected: str) -> None:
    code = 1 if "No such" in expected or "refused" in expected else 2
    for command in ("migrate", "version"):
        assert expected in failure(penstock(command, "--dsn", dsn), code)


def test_a_missing_database_or_privilege_is_one_line(empty: str) -> None:
    missing = make_conninfo(empty, dbname="nowhere")
    assert 'database "nowhere" does not exist' in failure(penstock("migrate", "--dsn", missing))
    with psycopg.connect(empty, autocommit=True) as root:
        root.execute("create role cli_stranger login")
        try:
            stranger = make_conninfo(empty, user="cli_stranger")
            assert "permission denied" in failure(penstock("migrate", "--dsn", stranger))
        finally:
            root.execute("drop role cli_stranger")


def test_a_newer_schema_is_one_line(empty: str) -> None:
    source = schema.load()
    newer = schema.Source("999.0", source.tables, source.functions, source.roles + "-- another")
    with psycopg.connect(empty) as connection:
        schema.install(connection, newer)
    line = failure(penstock("migrate", "--dsn", empty))
    assert "of version 999.0" in line
    assert "pip install --upgrade penstock" in line


def test_without_a_dsn_the_embedded_server_is_used(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    answer = penstock("migrate", **home)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "No database given: using the embedded server.\n"
    assert answer.stdout.startswith(f"postgres: schema penstock {__version__} installed\n")
    assert penstock("migrate", "--json", **home).stdout.count('"changed": false') == 1
