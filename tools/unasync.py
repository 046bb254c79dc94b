"""Writes the blocking client and its tests from the asynchronous ones; --check fails if out of step.

What differs between the two is in penstock/concurrency.py; all else is a matter of words. A rule that no file
needs any more is an error, so that the list stays true.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = {
    ROOT / "src/penstock/_async": ROOT / "src/penstock/_sync",
    ROOT / "tests/client/asynchronous": ROOT / "tests/client/synchronous",
}

# Tests of what both clients share, penstock/calls and the payloads: once is enough. That each method of the
# blocking client does the same is in tests/client/test_twins.py.
ONCE = {"test_bad_input.py", "test_calls.py", "test_payloads.py", "test_tasks.py"}

HEADER = "# Written by tools/unasync.py from {source}:\n# change that, run `make generate`.\n\n"

RULES = {
    r"\basync (def|with|for)\b": r"\1",
    r"\bawait ": "",
    r"\basynccontextmanager\b": "contextmanager",
    r"\b__a(enter|exit|iter)__\b": r"__\1__",
    r"\banext\b": "next",
    r"\basyncio\.Lock\b": "threading.Lock",
    r"\bimport asyncio\b": "import threading",
    r"\bin_thread\b": "in_this_thread",
    r"\basync_(sleep|made|to_the_end|chunks|until)\b": r"\1",
    r"\b(adapt|connect)_async\b": r"\1",
    r"\bAsync(?=[A-Z])": "",
    r"\bpenstock\._async\b": "penstock._sync",
    r"\bThe asynchronous client, written by hand; .*": 'The blocking client."""',
}

COROUTINE = "Coroutine[Any, Any, "


def without_coroutines(text: str) -> str:
    """`Coroutine[Any, Any, T]` is what an `async def` returns; the blocking twin returns T."""
    while (start := text.find(COROUTINE)) >= 0:
        end, depth = start + len(COROUTINE), 1
        while depth:
            depth += {"[": 1, "]": -1}.get(text[end], 0)
            end += 1
        text = text[:start] + text[start + len(COROUTINE) : end - 1] + text[end:]
    return text


def rewrite(source: Path, unused: set[str]) -> str:
    """The blocking twin of a file."""
    text = without_coroutines(source.read_text("utf-8"))
    for pattern, replacement in RULES.items():
        text, count = re.subn(pattern, replacement, text)
        if count:
            unused.discard(pattern)
    text = HEADER.format(source=source.relative_to(ROOT).as_posix()) + text
    # Shorter words: imports are sorted otherwise, lines break elsewhere, and `with` can be joined.
    text = ruff(text, source, "check", "--fix", "--exit-zero", "--quiet", "--select", "I,F401,RUF022,SIM117")
    return ruff(text, source, "format")


def ruff(text: str, source: Path, *arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "ruff"), *arguments, "--stdin-filename", str(source), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is out of step")
    check = parser.parse_args().check
    unused, wrong = set(RULES), []
    for origin, target in FOLDERS.items():
        sources = [source for source in sorted(origin.glob("*.py")) if source.name not in ONCE]
        wanted = {target / source.name: rewrite(source, unused) for source in sources}
        for stale in set(target.glob("*.py")) - set(wanted):
            wrong.append(stale)
            if not check:
                stale.unlink()
        for path, text in wanted.items():
            if path.exists() and path.read_text("utf-8") == text:
                continue
            wrong.append(path)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
    if unused:
        sys.exit(f"rules that nothing needs: {', '.join(sorted(unused))}")
    if check and wrong:
        names = ", ".join(path.relative_to(ROOT).as_posix() for path in wrong)
        sys.exit(f"out of step: {names}: run `make generate`")


if __name__ == "__main__":
    main()
