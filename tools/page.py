"""A page of the reference that is written from its source, or checked against it."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["REFERENCE", "write_or_check"]

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def write_or_check(about: str | None, output: Path, render: Callable[[], str], source: str) -> int:
    """Write the page, or with --check see whether it is in step with its source; the exit code."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the file is out of step")
    parser.add_argument("--output", type=Path, default=output)
    arguments = parser.parse_args()
    text, output = render(), arguments.output
    if not arguments.check:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
        return 0
    present = output.read_text("utf-8") if output.exists() else ""
    if present == text:
        return 0
    lines = (present.splitlines(keepends=True), text.splitlines(keepends=True))
    sys.stderr.writelines(difflib.unified_diff(*lines, str(output), f"from {source}"))
    sys.stderr.write(f"{output} is out of step with {source}: run `make docs`.\n")
    return 1
