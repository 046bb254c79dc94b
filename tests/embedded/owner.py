"""A process that has a server: says where it is, and lets go of it when its standard input ends.

owner.py throwaway [SETTING=VALUE ...]
owner.py shared DIRECTORY
"""

import contextlib
import json
import os
import sys
from pathlib import Path

from penstock.embedded import shared, throwaway


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "shared":
        context = shared(directory=Path(arguments[0]))
    else:
        context = throwaway(settings=dict(argument.split("=", 1) for argument in arguments))
    with context as server:
        about = {
            "dsn": server.dsn(),
            "tcp_dsn": server.tcp_dsn(),
            "data": str(server.data_directory),
            "pid": os.getpid(),
        }
        print(json.dumps(about), flush=True)
        while True:
            # The owner of the server decides what Ctrl-C does, and this owner ends in its own time.
            with contextlib.suppress(KeyboardInterrupt):
                sys.stdin.read()
                break


if __name__ == "__main__":
    main()
