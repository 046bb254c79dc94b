"""Runs the Python blocks of one page in one namespace: reads them from stdin, says when each has ended."""

from __future__ import annotations
import __future__

import json
import sys
import traceback

FLAGS = {"signatures": __future__.annotations.compiler_flag}


def main() -> None:
    namespace = {"__name__": "__main__"}
    end = sys.argv[1]
    # The files of the page can be imported, as in a terminal.
    sys.path[0] = ""
    for line in sys.stdin:
        block = json.loads(line)
        # So that a traceback names the line of the page.
        text = "\n" * (block["line"] - 1) + block["text"]
        status = "passed"
        try:
            flags = FLAGS.get(block["mark"], 0)
            exec(compile(text, block["page"], "exec", flags, dont_inherit=True), namespace)  # noqa: S102
        except BaseException:
            traceback.print_exc()
            status = "failed"
        sys.stderr.flush()
        print(f"{end} {status}", flush=True)


if __name__ == "__main__":
    main()
