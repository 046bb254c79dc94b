"""The command `penstock worker`: what it takes, what it says, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.embedded import Server
from tests.worker.stage import PATIENCE, PRELUDE, Stage

Sql = psycopg.Connection[Any]

TWO_QUEUES = """
@app.task(queue="a")
async def one():
    say("one")

@app.task(queue="b")
async def other():
    say("other")
"""


def run(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command, until it ends by itself."""
    command = [sys.executable, "-m", "penstock.cli", "worker", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environ or {})},
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )


def test_it_works_for_the_queues_that_are_named(stage: Stage) -> None:
    stage.write(TWO_QUEUES)
    message_id = stage.enqueue("one")
    worker = stage.worker("--queue", "b")
    stage.enqueue("other")
    stage.heard("other")
    assert worker.stop() == 0
    assert stage.said == ["other"]
    assert stage.state("one", message_id) == "ready"


def test_the_app_may_be_the_only_one_of_its_module_and_name_its_database(stage: Stage) -> None:
    stage.write(TWO_QUEUES)
    module = stage.folder / "jobs.py"
    module.write_text(module.read_text().replace("penstock.App()", f"penstock.App({stage.dsn!r})"))
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "worker", "jobs"],
        cwd=stage.folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            stage.enqueue("one")
            stage.heard("one")
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_database_without_the_schema_ends_it(
    stage: Stage, server18: Server, sql18: Sql, processes: str
) -> None:
    stage.write(TWO_QUEUES)
    name = f"{sql18.info.dbname}_empty"
    sql18.execute(f'create database "{name}"')
    try:
        ended = run(stage.folder, "jobs:app", "--dsn", server18.dsn(name), "--processes", processes)
    finally:
        sql18.execute(f'drop database "{name}" with (force)')
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "penstock migrate" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_role_without_rights_ends_it_with_a_line(stage: Stage, sql18: Sql, processes: str) -> None:
    stage.write(TWO_QUEUES)
    role = f"stranger_{sql18.info.dbname}"
    sql18.execute(f"create role {role} login")
    try:
        dsn = stage.dsn.replace("postgres@", f"{role}@")
        ended = run(stage.folder, "jobs:app", "--dsn", dsn, "--processes", processes)
    finally:
        sql18.execute(f"drop role {role}")
    assert ended.returncode == 1
    assert "permission denied" in ended.stderr
    assert "penstock doctor --check roles says which role" in ended.stderr
    assert "working on" not in ended.stderr
    assert "Traceback" not in ended.stderr
    errors = [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) <= int(processes)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_embedded_server_that_cannot_start_ends_it_with_a_line(stage: Stage, processes: str) -> None:
    stage.write(TWO_QUEUES)
    environ = {"PENSTOCK_PG_BIN": str(stage.folder / "nothing"), "HOME": str(stage.folder)}
    ended = run(stage.folder, "jobs:app", "--processes", processes, environ=environ)
    assert ended.returncode == 1
    assert "Error: " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nothing:app",), "there is no module 'nothing'"),
        (("jobs:nothing",), "module 'jobs' has no attribute 'nothing': its apps are jobs:app"),
        (("jobs:say",), "module 'jobs' has a function, not an app, as 'say': its apps are jobs:app"),
        (("two",), "module 'two' has 2 apps, say which: its apps are two:app, two:other"),
        (("none",), "module 'none' has no app: there is no penstock.App in"),
        (("none:app",), "module 'none' has no attribute 'app': there is no penstock.App in"),
        (("jobs:app", "--queue", "c"), "no task of this app is in queue 'c'"),
        (("jobs:app", "--concurrency", "0"), "concurrency"),
        (("jobs:app", "--queue", "c", "--processes", "2"), "no task of this app is in queue 'c'"),
        (("empty:app",), "this app has no tasks"),
    ],
)
def test_what_makes_no_sense_is_refused(stage: Stage, arguments: tuple[str, ...], complaint: str) -> None:
    stage.write(TWO_QUEUES)
    stage.write("", name="empty")
    stage.write("other = penstock.App()", name="two")
    (stage.folder / "none.py").write_text("")
    ended = run(stage.folder, *arguments)
    assert ended.returncode in (1, 2)
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_error_of_the_module_itself_is_shown_as_it_is(stage: Stage) -> None:
    (stage.folder / "broken.py").write_text(PRELUDE + "import no_such_thing_at_all\n")
    ended = run(stage.folder, "broken:app")
    assert ended.returncode == 1
    assert "No module named 'no_such_thing_at_all'" in ended.stderr
    assert "broken.py" in ended.stderr


def test_the_log_level_is_that_of_the_option(stage: Stage) -> None:
    stage.write(TWO_QUEUES)
    worker = stage.start("--log-level", "warning")
    stage.enqueue("one")
    stage.heard("one")
    assert worker.stop() == 0
    assert worker.log == ""
