"""The units: what systemd-analyze says of them, and their commands run as systemd runs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import httpx
import pytest

from penstock.cli import main
from penstock.health import state
from penstock.server import services
from tests.deploy.conftest import FreePort
from tests.deploy.files import DEPLOY, Unit, seconds
from tests.health.listening import Systemd, systemd

UNITS = DEPLOY / "systemd"
PROGRAM = Path(sys.executable).with_name("penstock")
INSTANCE = "shop"
# Of 100: 0 is nothing that could be exposed.
MOST_EXPOSED = 20
TASKS = """
import penstock

app = penstock.App()


@app.task
async def pay(amount: int) -> None:
    print("paid", amount, flush=True)
"""


def unit(name: str) -> Unit:
    return Unit(UNITS / name, INSTANCE)


def names() -> list[str]:
    return sorted(path.name for path in UNITS.iterdir())


def test_the_units_are_these() -> None:
    assert names() == ["penstock-dashboard.service", "penstock-up.service", "penstock-worker@.service"]


@pytest.mark.parametrize("name", names())
def test_no_secret_is_on_a_command_line(name: str) -> None:
    """Every user of the machine can read it. Environment= is as public: `systemctl show` prints it."""
    found = unit(name)
    command = found.value("ExecStart")
    assert "--dsn" not in command
    assert "token" not in command.lower()
    assert "://" not in command
    assert not {"PENSTOCK_DATABASE_URL", "PENSTOCK_DASHBOARD_TOKEN"} & found.environment().keys()
    assert found.value("EnvironmentFile").startswith("/etc/penstock/")
    assert not found.value("EnvironmentFile").startswith("-"), "without it there is no database"


def option(command: str, name: str) -> float:
    """The default of an option."""
    found = main.get_command(click.Context(main), command)
    assert found is not None
    (value,) = [each.default for each in found.params if each.name == name]
    return float(str(value))


@pytest.mark.parametrize("name", names())
def test_systemd_waits_for_longer_than_a_stop_takes(name: str) -> None:
    # Workers side by side take ten seconds more.
    worker = option("worker", "grace") + 10
    service = services.GRACE_SECONDS + services.HURRY_SECONDS
    longest = worker if name.startswith("penstock-worker") else service
    assert seconds(unit(name).value("TimeoutStopSec")) >= longest * 1.25
    assert unit(name).value("KillMode") == "mixed"


@pytest.mark.parametrize("name", names())
def test_the_watchdog_is_slower_than_the_program_notices_by_itself(name: str) -> None:
    """Else systemd would end a process before its own report said what hangs."""
    assert unit(name).value("Type") == "notify"
    assert seconds(unit(name).value("WatchdogSec")) >= 3 * state.BEAT_LIMIT_SECONDS


# With systemd's own program


def verify(systemd_analyze: Path, paths: list[Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [systemd_analyze, "verify", "--man=no", *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def copied(folder: Path, **replaced: str) -> list[Path]:
    """The units with a program that is on this machine. replaced: a key, and its value instead."""
    paths = list[Path]()
    for name in names():
        text = (UNITS / name).read_text()
        for program in ("/opt/penstock/bin/penstock", "/srv/%i/.venv/bin/penstock"):
            text = text.replace(f"ExecStart={program} ", f"ExecStart={PROGRAM} ")
        assert f"ExecStart={PROGRAM} " in text
        for key, value in replaced.items():
            assert f"\n{key}=" in text
            text = text.replace(f"\n{key}=", f"\n{value}")
        path = folder / name.replace("@.", f"@{INSTANCE}.")
        path.write_text(text)
        paths.append(path)
    return paths


def test_systemd_accepts_the_units(systemd_analyze: Path, tmp_path: Path) -> None:
    done = verify(systemd_analyze, copied(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_would_notice_an_unknown_setting(systemd_analyze: Path, tmp_path: Path) -> None:
    done = verify(systemd_analyze, copied(tmp_path, WatchdogSec="WatchdogSeconds="))
    assert done.stderr.count("'WatchdogSeconds'") == len(names())


@pytest.mark.parametrize("name", names())
def test_little_is_exposed(systemd_analyze: Path, name: str) -> None:
    command = [
        str(systemd_analyze),
        "security",
        "--offline=true",
        "--no-pager",
        f"--threshold={MOST_EXPOSED}",
    ]
    done = subprocess.run(
        [*command, str(UNITS / name)], capture_output=True, text=True, check=False, timeout=60
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("THIS systemd-analyze CANNOT JUDGE A FILE: how much the units expose was not checked")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


# As systemd runs them


@contextmanager
def started(
    found: Unit, environ: dict[str, str], settings: dict[str, str], manager: Systemd, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The command of a unit. settings: the content of its EnvironmentFile."""
    given = {**environ, **found.environment(), **settings}
    program, *arguments = found.command(given)
    assert Path(program).name == PROGRAM.name
    watchdog = seconds(found.value("WatchdogSec"))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            env={**given, **manager.variables(watchdog=watchdog)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stops(process: subprocess.Popen[bytes], found: Unit, manager: Systemd) -> None:
    """It ends in order, and in the time that systemd gives it, when systemd stops it."""
    process.terminate()
    assert found.value("KillSignal") == "SIGTERM"
    assert process.wait(seconds(found.value("TimeoutStopSec"))) == 0
    manager.hears("STOPPING=1")
    assert (manager.lines.count("READY=1"), manager.lines.count("STOPPING=1")) == (1, 1)


@pytest.mark.parametrize("name", ["penstock-up.service", "penstock-dashboard.service"])
def test_a_service_with_a_dashboard(
    name: str, database18: str, bare_environment: dict[str, str], free_port: FreePort, tmp_path: Path
) -> None:
    port = free_port()
    settings = {
        "PENSTOCK_DATABASE_URL": database18,
        "PENSTOCK_DASHBOARD_TOKEN": "secret",
        "PENSTOCK_DASHBOARD_PORT": str(port),
    }
    found = unit(name)
    with (
        systemd(str(tmp_path / "notify")) as manager,
        started(found, bare_environment, settings, manager, tmp_path) as process,
    ):
        manager.hears("READY=1")
        manager.hears("WATCHDOG=1")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/metrics").status_code == 401
            client.get("/metrics", headers={"Authorization": "Bearer secret"}).raise_for_status()
        stops(process, found, manager)


def test_a_worker(database18: str, bare_environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    found = unit("penstock-worker@.service")
    assert found.value("WorkingDirectory") == f"/srv/{INSTANCE}"
    settings = {
        "PENSTOCK_DATABASE_URL": database18,
        "PENSTOCK_APP": "tasks:app",
        "PENSTOCK_WORKER_OPTIONS": "--concurrency 5 --threads 1",
    }
    with (
        systemd(str(tmp_path / "notify")) as manager,
        started(found, bare_environment, settings, manager, tmp_path) as process,
    ):
        manager.hears("READY=1")
        manager.hears("WATCHDOG=1")
        stops(process, found, manager)


def test_wrong_usage_is_not_tried_again(
    database18: str, bare_environment: dict[str, str], tmp_path: Path
) -> None:
    found = unit("penstock-worker@.service")
    settings = {"PENSTOCK_DATABASE_URL": database18, "PENSTOCK_APP": "nothing:app"}
    with (
        systemd(str(tmp_path / "notify")) as manager,
        started(found, bare_environment, settings, manager, tmp_path) as process,
    ):
        assert str(process.wait(30)) == found.value("RestartPreventExitStatus")
