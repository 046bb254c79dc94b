"""The health of workers, as systemd and probes see it: ready while it works, live while its loop turns."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from penstock import App, schema
from penstock.embedded import throwaway
from penstock.health import Health
from penstock.worker import contact
from tests.conftest import SETTINGS
from tests.failures.proxy import Proxy
from tests.health.listening import Systemd, ask, systemd
from tests.worker.stage import Process, Stage, holds, working

Answer = tuple[int, str]

TASKS = """
import subprocess

SHOW = "import os; print([name for name in os.environ if name.startswith(('NOTIFY', 'WATCHDOG'))])"

def environment():
    return subprocess.check_output([sys.executable, "-c", SHOW], text=True).strip()

@app.task
async def hold(gate: str):
    say("begins", gate)
    await passed(gate)
    say("ends", gate)

@app.task
async def block(gate: str):
    say("blocks", os.getpid())
    waits(gate)
    say("ends", gate)

@app.task
async def look():
    say("worker", environment())

@app.task(process=True)
def look_in_process():
    say("process", environment())
"""


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    """systemd: workers that are started from now on have its variables, with a watchdog of a second."""
    with systemd(str(tmp_path / "notify")) as one:
        for name, value in one.variables(watchdog=1).items():
            monkeypatch.setenv(name, value)
        yield one


def probe(worker: Process) -> Callable[[str], Answer]:
    """Asks a worker that has --health-port 0."""
    worker.says("health on http://")
    found = re.search(r"health on http://127.0.0.1:(\d+)", worker.log)
    assert found is not None
    return lambda path: ask(int(found[1]), path)


def becomes(stage: Stage, probe: Callable[[str], Answer], path: str, status: int, word: str = "") -> None:
    """Wait until a probe is answered so."""

    def is_so() -> bool:
        seen, text = probe(path)
        return seen == status and word in text

    stage.until(is_so, f"{path} says {status} {word}", 40)


def blocked(stage: Stage) -> int:
    """Wait for the handler that blocks the loop; the process where it does."""
    stage.until(lambda: any(line.startswith("blocks") for line in stage.said), "it blocks")
    return next(int(line.split()[1]) for line in stage.said if line.startswith("blocks"))


def workers_of(supervisor: Process) -> list[int]:
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def test_systemd_follows_the_life_of_a_worker(
    stage: Stage, manager: Systemd, proxy: Proxy, proxied: str
) -> None:
    stage.write(TASKS)
    proxy.refuse()
    worker = stage.start(dsn=proxied)
    worker.says("the database cannot be reached")
    manager.hears("WATCHDOG=1", 2)
    away = "STATUS=the database cannot be reached"
    stage.until(lambda: any(line.startswith(away) for line in manager.lines), "systemd hears why")
    assert "READY=1" not in manager.lines
    proxy.admit()
    manager.hears("READY=1")
    assert "working on" in worker.log
    assert "STATUS=working on default" in manager.lines
    for task in ("look", "look_in_process"):
        stage.enqueue(task)
    stage.heard("worker []", "process []")
    stage.enqueue("hold", "gate")
    stage.heard("begins gate")
    worker.signal(signal.SIGTERM)
    manager.hears("STOPPING=1")
    manager.hears("WATCHDOG=1", len(manager.times("WATCHDOG=1")) + 2)
    assert worker.is_running
    stage.open("gate")
    assert worker.wait() == 0
    assert (manager.lines.count("READY=1"), manager.lines.count("STOPPING=1")) == (1, 1)


def test_a_worker_that_cannot_work_is_never_ready(stage: Stage, manager: Systemd) -> None:
    worker = stage.write("").start()
    assert worker.wait() == 2
    assert "this app has no tasks" in worker.log
    assert "READY=1" not in manager.lines


@pytest.mark.slow
def test_a_handler_that_blocks_the_loop_is_seen(stage: Stage, manager: Systemd) -> None:
    stage.write(TASKS)
    worker = stage.worker("--health-port", "0", "--lease", "60")
    asked = probe(worker)
    assert asked("/livez") == (200, "live\n")
    becomes(stage, asked, "/readyz", 200, "working on default")
    stage.enqueue("block", "gate")
    blocked(stage)
    began = time.monotonic()
    becomes(stage, asked, "/livez", 503, "the main loop has not turned for 1")
    assert 8 < time.monotonic() - began < 20
    assert asked("/readyz")[0] == 503
    signs = len(manager.times("WATCHDOG=1"))
    assert signs > 10
    time.sleep(1.2)
    assert len(manager.times("WATCHDOG=1")) <= signs + 1
    stage.open("gate")
    becomes(stage, asked, "/livez", 200)
    becomes(stage, asked, "/readyz", 200)
    manager.hears("WATCHDOG=1", signs + 2)
    assert worker.stop() == 0
    assert stage.said.count("ends gate") == 1


@pytest.mark.slow
def test_a_worker_is_not_ready_while_the_database_is_away(tmp_path: Path) -> None:
    """Neither one that looks for tasks, nor one that does not since its slots are taken."""
    with throwaway(settings=SETTINGS) as server:
        with psycopg.connect(server.dsn()) as connection:
            schema.install(connection)
        with closing(Stage(tmp_path, server.dsn()).write(TASKS)) as stage:
            worker = stage.worker("--health-port", "0", "-c", "1", "--threads", "1", "--cpu-processes", "1")
            asked = probe(worker)
            for gate in ("", "gate"):
                if gate:
                    stage.enqueue("hold", gate)
                    stage.heard(f"begins {gate}")
                becomes(stage, asked, "/readyz", 200)
                server.stop()
                becomes(stage, asked, "/readyz", 503, "the database cannot be reached")
                assert asked("/livez") == (200, "live\n")
                server.start()
                becomes(stage, asked, "/readyz", 200)
            stage.open("gate")
            stage.heard("ends gate")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0


async def test_a_network_that_hangs_is_seen(
    proxy: Proxy, proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing fails, nothing comes: the silence counts."""
    monkeypatch.setattr(contact, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(contact, "QUIET_SECONDS", 1.5)
    app, health = App(), Health()

    @app.task
    async def nothing() -> None: ...

    async with working(app, proxied, health=health):
        await holds(lambda: health.readiness()[0], "it is ready")
        proxy.freeze()
        await holds(lambda: not health.readiness()[0], "it is not ready")
        assert "the database has not answered for" in health.readiness()[1]
        assert health.liveness() == (True, "")
        proxy.thaw()
        await holds(lambda: health.readiness()[0], "it is ready again")
    assert health.readiness() == (False, "stopping")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_in_use_ends_it_before_it_begins(stage: Stage, processes: str) -> None:
    stage.write(TASKS)
    message_id = stage.enqueue("hold", "gate")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        worker = stage.start("--health-port", port, "--processes", processes)
        assert worker.wait() == 1
    assert f"port {port} of 127.0.0.1 is in use" in worker.log
    assert "Traceback" not in worker.log
    assert stage.state("hold", message_id) == "ready"


def test_the_host_may_be_of_ipv6(stage: Stage) -> None:
    worker = stage.write(TASKS).worker("--health-port", "0", "--health-host", "::1")
    found = re.search(r"health on http://\[::1\]:(\d+)", worker.log)
    assert found is not None
    assert ask(int(found[1]), "/livez", host="::1")[0] == 200
    assert worker.stop() == 0


def test_a_supervisor_speaks_for_its_workers(stage: Stage, manager: Systemd) -> None:
    stage.write(TASKS)
    supervisor = stage.start("--processes", "2", "--health-port", "0")
    asked = probe(supervisor)
    becomes(stage, asked, "/readyz", 200, "2 of 2 workers are ready")
    manager.hears("READY=1")
    for task in ("look", "look_in_process"):
        stage.enqueue(task)
    stage.heard("worker []", "process []")
    killed = workers_of(supervisor)[0]
    os.kill(killed, signal.SIGKILL)
    becomes(stage, asked, "/readyz", 503, "1 of 2 workers are ready")
    assert asked("/livez") == (200, "live\n")
    becomes(stage, asked, "/readyz", 200)
    assert killed not in workers_of(supervisor)
    stage.enqueue("hold", "gate")
    stage.heard("begins gate")
    supervisor.signal(signal.SIGTERM)
    manager.hears("STOPPING=1")
    becomes(stage, asked, "/readyz", 503, "stopping")
    manager.hears("WATCHDOG=1", len(manager.times("WATCHDOG=1")) + 2)
    stage.open("gate")
    assert supervisor.wait() == 0
    # One voice, one port.
    assert manager.lines.count("STOPPING=1") == 1
    assert supervisor.log.count("health on") == 1


@pytest.mark.slow
def test_a_supervisor_ends_a_worker_that_hangs_and_says_where(stage: Stage) -> None:
    stage.write(TASKS)
    supervisor = stage.start("--processes", "2", "--health-port", "0", "--lease", "2")
    asked = probe(supervisor)
    becomes(stage, asked, "/readyz", 200)
    stage.enqueue("block", "gate")
    hanging = blocked(stage)
    becomes(stage, asked, "/livez", 503, f"worker {hanging}: the main loop has not turned")
    supervisor.says(f"worker {hanging} hangs, and is ended")
    stage.open("gate")
    supervisor.says(f"worker {hanging} ended with -6")
    assert 'jobs.py", line' in supervisor.log
    assert "in waits" in supervisor.log
    becomes(stage, asked, "/livez", 200)
    becomes(stage, asked, "/readyz", 200)
    assert supervisor.stop() == 0
