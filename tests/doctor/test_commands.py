"""Commands to copy: whatever a name has in it, a terminal, psql and the shell take it as that name."""

import subprocess
from typing import Any

import psycopg
import pytest

from penstock.doctor.findings import identifier, literal, shell

NAMES = [
    "plain",
    'it\'s "quoted" \\ `id` $(id) $HOME; #',
    "bold \x1b[201~\x1b[31m, two\r\nlines, \x03\x15\x04",
    "\N{RIGHT-TO-LEFT OVERRIDE}txt.exe \N{LINE SEPARATOR}\\x",
    "\N{PILE OF POO} \N{LATIN SMALL LETTER U WITH DIAERESIS}\U000e0001",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_word_of_the_shell(name: str) -> None:
    command = shell("printf", "%s", name)
    assert command.isprintable(), "a terminal obeys control characters before the shell sees the quotes"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode() == name


@pytest.mark.parametrize("name", NAMES)
def test_a_value_and_a_name_in_sql(sql18: psycopg.Connection[Any], name: str) -> None:
    statement = f"select {literal(name)} as {identifier(name)}"
    assert statement.isprintable()
    cursor = sql18.execute(statement.encode())
    assert cursor.fetchone() == (name,)
    assert cursor.description is not None
    assert cursor.description[0].name == name
