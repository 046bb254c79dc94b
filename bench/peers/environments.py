"""A virtual environment for each peer: what they depend on may clash, with ours and among themselves."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

from bench.peers.roster import Contestant

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".venv-bench"


def python(contestant: Contestant) -> Path:
    """The interpreter for a contestant's program; its environment is made when it is first asked for."""
    if contestant.is_ours:
        return Path(sys.executable)
    requirements = Path(__file__).with_name(f"requirements-{contestant.name}.txt")
    home = HOME / contestant.name
    interpreter = home / "bin" / "python"
    stamp = home / ".ready"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return interpreter
    print(f"Making an environment for {contestant.title} ...", flush=True)
    venv.create(home, clear=True, with_pip=True)
    install = (interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run((*install, "--requirement", requirements), check=True)
    stamp.write_text(wanted)
    return interpreter


def version(contestant: Contestant) -> str:
    """The version of the contestant's package that is installed."""
    requirements = Path(__file__).with_name(f"requirements-{contestant.name}.txt")
    package = "penstock"
    if not contestant.is_ours:
        package = requirements.read_text().split(">=")[0].split("[")[0]
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    found = subprocess.run((python(contestant), "-c", code), check=True, capture_output=True, text=True)
    return found.stdout.strip()
