"""`python -m tests.liveness --seconds N --seed S`: a longer run, on a throwaway server."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import psycopg

from penstock import schema
from penstock.embedded import throwaway

from .runner import run

SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with throwaway() as server, tempfile.TemporaryDirectory() as folder:
        with psycopg.connect(server.dsn()) as connection:
            schema.install(connection)
        outcome = run(server.dsn(), Path(folder), seconds=given.seconds, seed=given.seed)
    print(outcome)
    for wait in outcome.late[:SHOWN]:
        print(wait)
    return 1 if outcome.late else 0


if __name__ == "__main__":
    sys.exit(main())
