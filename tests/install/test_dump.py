"""The schema as a committed text, so that a change of it shows in review.

Written anew by `PENSTOCK_UPDATE=1 pytest tests/install/test_dump.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

from .catalog import describe

DUMP = Path(__file__).with_name("schema.txt")


def test_the_schema_is_what_the_dump_says(sql18: psycopg.Connection[object]) -> None:
    text = "\n".join(line.rstrip() for line in describe(sql18, bodies=False)) + "\n"
    if os.environ.get("PENSTOCK_UPDATE"):
        DUMP.write_text(text)
    assert text == DUMP.read_text(), (
        "if the change is meant: PENSTOCK_UPDATE=1 pytest tests/install/test_dump.py"
    )
