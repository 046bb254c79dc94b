"""PENSTOCK_EMBEDDED=0: no command starts an empty database where one was meant to be given."""

from __future__ import annotations

from pathlib import Path

import pytest

from .command import Command

COMMANDS = [
    ("up",),
    ("worker", "jobs"),
    ("worker", "jobs", "--processes", "2"),
    ("maintain",),
    ("topic", "list"),
    ("queue", "list"),
    ("publish", "t", "1"),
    ("send", "q", "1"),
    ("consume", "q"),
    ("consume", "q", "--exec", "true"),
    ("peek", "q"),
    ("message", "list", "q"),
    ("dlq", "list", "q"),
    ("schedule", "list"),
    ("workers",),
    ("top", "--once"),
    ("stats",),
    ("doctor",),
    ("bench", "--quick"),
    ("migrate",),
]
JOBS = "import penstock\napp = penstock.App()\n@app.task\ndef f(): ...\n"


@pytest.fixture
def bare(tmp_path: Path) -> Command:
    """`penstock` without a database."""
    (tmp_path / "jobs.py").write_text(JOBS)
    return Command(None, tmp_path)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_command_starts_it(bare: Command, arguments: tuple[str, ...]) -> None:
    answer = bare(*arguments, environ={"PENSTOCK_EMBEDDED": "0"})
    assert answer.code in {1, 2}
    assert answer.out == ""
    assert "Traceback" not in answer.err
    for part in ("no database is given", "PENSTOCK_EMBEDDED=0", "PENSTOCK_DATABASE_URL", "PGHOST"):
        assert part in answer.err
    assert [entry.name for entry in bare.folder.iterdir() if entry.name != "__pycache__"] == ["jobs.py"]


def test_the_version_of_the_package_needs_none(bare: Command) -> None:
    assert bare("version", environ={"PENSTOCK_EMBEDDED": "0"}).ok().out.startswith("penstock ")


def test_a_value_that_is_neither_0_nor_1_is_refused(bare: Command) -> None:
    bare("queue", "list", environ={"PENSTOCK_EMBEDDED": "no"}).failed(2, "PENSTOCK_EMBEDDED", "'no'")
