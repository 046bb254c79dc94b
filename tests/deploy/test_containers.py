"""The Dockerfile and compose.yml. No Docker is needed: each command runs as a process, with its variables."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import httpx
import psycopg
import pytest

from penstock import App, dsn
from penstock.cli import main
from penstock.embedded import find_binaries, throwaway
from tests.conftest import SETTINGS, in_memory
from tests.deploy.conftest import FreePort
from tests.deploy.files import DEPLOY, ROOT, VARIABLE, Compose, instructions, seconds
from tests.embedded.processes import eventually

BIN = Path(sys.executable).parent
DOCKERFILE = DEPLOY / "Dockerfile"
SECRET = re.compile("PASSWORD|TOKEN")
# Variables of the image of PostgreSQL.
OF_POSTGRES = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"}
TASKS = """
import penstock

app = penstock.App()


@app.task(queue="sums", result=True)
async def add(a: int, b: int) -> int:
    return a + b
"""


def example() -> dict[str, str]:
    """The variables of .env.example."""
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def settings(folder: Path) -> dict[str, str]:
    """The same, with secrets that would not fit into a URL, and with an app."""
    secrets = {name: f"p@ss/{name}:'%" for name in example() if SECRET.search(name)}
    return {**example(), **secrets, "PENSTOCK_APP_FOLDER": str(folder)}


@pytest.fixture
def compose(tmp_path: Path) -> Compose:
    (tmp_path / "tasks.py").write_text(TASKS)
    return Compose(settings(tmp_path))


# The Dockerfile


def of_dockerfile(name: str) -> list[Any]:
    return [each for each in instructions(DOCKERFILE) if each.name == name]


def test_the_image_runs_as_an_ordinary_user_and_gets_signals() -> None:
    found = instructions(DOCKERFILE)
    last = max(each.stage for each in found)
    assert last == 1, "a stage that builds, and one that runs"
    (user,) = [each.value for each in found if each.name == "USER" and each.stage == last]
    assert all(part.isdigit() and int(part) > 0 for part in user.split(":")), "Kubernetes asks for numbers"
    # Without a shell in between.
    (entrypoint,) = of_dockerfile("ENTRYPOINT")
    assert entrypoint.words == ["penstock"]
    (command,) = of_dockerfile("CMD")
    assert command.words
    (health,) = of_dockerfile("HEALTHCHECK")
    assert health.words[0] == "python"
    for each in (entrypoint, command, health):
        assert each.stage == last


def test_no_secret_and_nothing_needless_is_in_the_image() -> None:
    for each in (*of_dockerfile("ENV"), *of_dockerfile("ARG")):
        assert not re.search(r"TOKEN|PASSWORD|DATABASE_URL|PGPASS", each.value)
    ignored, wanted = list[str](), list[str]()
    for line in Path(f"{DOCKERFILE}.dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            (wanted if line.startswith("!") else ignored).append(line.lstrip("!"))
    assert "*" in ignored
    for each in of_dockerfile("COPY"):
        *sources, _ = each.value.split()
        if sources[0].startswith("--from="):
            assert sources[0] == "--from=build"
            continue
        assert all((ROOT / source).exists() for source in sources)
        assert all(any(fnmatch(source.removeprefix("./"), one) for one in wanted) for source in sources)
    # What the build reads is among it.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(wanted)


def test_the_image_has_extras_that_exist() -> None:
    arguments = dict(each.value.split("=", 1) for each in of_dockerfile("ARG"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(arguments["EXTRAS"].split(",")) <= project["optional-dependencies"].keys()
    assert "web" in arguments["EXTRAS"]
    oldest = project["requires-python"].removeprefix(">=")
    assert [int(part) for part in arguments["PYTHON"].split(".")] >= [int(part) for part in oldest.split(".")]


def test_hadolint_accepts_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=str(BIN)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("NO HADOLINT: the Dockerfile was not checked by it")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    bad = subprocess.run([hadolint, "-"], input="FROM debian\n", capture_output=True, text=True, check=False)
    assert bad.returncode != 0


# compose.yml


def known_variables() -> set[str]:
    """What Penstock, or libpq for it, reads."""
    options = {
        str(parameter.envvar)
        for name in ("dashboard", "up", "worker", "migrate")
        if (command := main.get_command(click.Context(main), name)) is not None
        for parameter in command.params
        if parameter.envvar
    }
    return options | {*dsn.DSN_VARIABLES, *dsn.LIBPQ_VARIABLES, dsn.EMBEDDED_VARIABLE, "PGPASSWORD"}


def test_every_variable_is_read_by_a_program(compose: Compose) -> None:
    by_psql = set(re.findall(r"\\getenv \w+ (\w+)", (DEPLOY / "postgres" / "roles.sql").read_text()))
    for name, service in compose.services.items():
        of_image = OF_POSTGRES if name == "db" else by_psql if name == "roles" else set()
        assert service["environment"].keys() <= known_variables() | of_image, name
        assert service["environment"].get("PGHOST", "db") in compose.services


def test_secrets_come_from_outside_and_are_asked_for(tmp_path: Path) -> None:
    text = (DEPLOY / "compose.yml").read_text()
    named = {name: kind for name, kind, _ in VARIABLE.findall(text)}
    assert named.keys() - {"PENSTOCK_IMAGE"} == example().keys()
    given = settings(tmp_path)
    for name, value in example().items():
        if SECRET.search(name):
            assert value == "", "an example that works would be used"
            assert named[name] == ":?"
            with pytest.raises(LookupError, match=name):
                Compose({**given, name: ""})
    # In values, and on no command line.
    for service in Compose(given).services.values():
        assert "p@ss" not in " ".join(service.get("command", ()))
        for name, value in service["environment"].items():
            assert ("p@ss" in value) == bool(SECRET.search(name))


def test_services_wait_for_what_they_need(compose: Compose) -> None:
    for service in compose.services.values():
        for name, needed in service.get("depends_on", {}).items():
            other = compose.services[name]
            if needed["condition"] == "service_healthy":
                assert "test" in other["healthcheck"]
            else:
                assert needed["condition"] == "service_completed_successfully"
                assert other["restart"].startswith("on-failure"), "it ends"
    # Else `docker compose up --wait` takes the end of a service for a failure.
    ends = {name for name, service in compose.services.items() if service["restart"] != "unless-stopped"}
    for name in ("worker", "dashboard"):
        assert compose.services[name]["depends_on"].keys() == ends
    (grace,) = re.findall(r"--grace (\d+)", " ".join(compose.services["worker"]["command"]))
    assert seconds(compose.services["worker"]["stop_grace_period"]) >= int(grace) + 10


def test_services_have_no_more_rights_than_they_need(compose: Compose) -> None:
    for name in ("migrate", "worker", "dashboard"):
        service = compose.services[name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert compose.services["worker"]["environment"]["PGUSER"] == "app_worker"
    assert compose.services["dashboard"]["environment"]["PGUSER"] == "app_dashboard"
    published = [port for service in compose.services.values() for port in service.get("ports", ())]
    assert published == ["127.0.0.1:8432:8432"], "the database is not reached from outside"


# All of it, as processes


class Stack:
    """The services of compose.yml in a network of their own: ports of this machine instead."""

    def __init__(
        self,
        compose: Compose,
        server_port: int,
        environ: Mapping[str, str],
        free_port: FreePort,
        folder: Path,
    ) -> None:
        self.services = compose.services
        self.folder = folder
        self._server_port = server_port
        self._environ = environ
        self.port = {"worker": free_port(), "dashboard": free_port(), "up": free_port()}
        self._stack = ExitStack()

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def environment(self, name: str) -> dict[str, str]:
        (image,) = [each.value for each in of_dockerfile("ENV")]
        of_image = dict(pair.split("=", 1) for pair in image.split())
        # The path is that of the image: here the programs are elsewhere.
        assert of_image.pop("PATH").startswith("/opt/penstock/bin:")
        found = {**self._environ, **of_image, **self.services[name]["environment"]}
        assert found.pop("PGHOST") == "db"
        return {**found, "PGHOST": "127.0.0.1", "PGPORT": str(self._server_port)}

    def run(self, name: str, *command: object) -> None:
        """A service that ends."""
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment(name),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr

    def start(self, name: str, command: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """A service that stays."""
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [BIN / "penstock", *command], env=environ, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def becomes_healthy(self, name: str, check: list[str], process: subprocess.Popen[bytes]) -> None:
        kind, *command = check
        assert (kind, command[0]) == ("CMD", "python")

        def is_healthy() -> bool:
            assert process.poll() is None, (self.folder / f"{name}.log").read_text()
            done = subprocess.run(
                [sys.executable, *command[1:]], env=self._environ, capture_output=True, check=False
            )
            return done.returncode == 0

        eventually(is_healthy, f"{name} is healthy", 30)


def moved(words: list[str], port: int, to: int) -> list[str]:
    """A command with another port: it has to be there, once."""
    found = [re.sub(rf"(?<!\d){port}(?!\d)", str(to), word) for word in words]
    assert sum(a != b for a, b in zip(found, words, strict=True)) == 1, (port, words)
    return found


@pytest.fixture
def stack(
    compose: Compose, bare_environment: dict[str, str], free_port: FreePort, tmp_path: Path
) -> Iterator[Stack]:
    """The database of the service db, made as its image does it."""
    given = compose.services["db"]["environment"]
    with throwaway(settings=SETTINGS, directory=in_memory()) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            role = psycopg.sql.Identifier(given["POSTGRES_USER"])
            password = psycopg.sql.Literal(given["POSTGRES_PASSWORD"])
            admin.execute(
                psycopg.sql.SQL("create role {} superuser login password {}").format(role, password)
            )
            name = psycopg.sql.Identifier(given["POSTGRES_DB"])
            admin.execute(psycopg.sql.SQL("create database {} owner {}").format(name, role))
        port = int(str(psycopg.conninfo.conninfo_to_dict(server.tcp_dsn())["port"]))
        with Stack(compose, port, bare_environment, free_port, tmp_path) as found:
            yield found


def app_of(folder: Path, environ: Mapping[str, str]) -> App:
    """The app that the worker runs, to enqueue with."""
    spec = importlib.util.spec_from_file_location("tasks", folder / "tasks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = module.app
    assert isinstance(app, App)
    names = {"PGHOST": "host", "PGPORT": "port", "PGDATABASE": "dbname", "PGUSER": "user"}
    parts = {name: environ[variable] for variable, name in names.items()}
    app.use(psycopg.conninfo.make_conninfo(**parts, password=environ["PGPASSWORD"]))
    return app


def test_all_services_run_together(stack: Stack, free_port: FreePort, tmp_path: Path) -> None:
    services, port = stack.services, stack.port
    kind, program, *arguments = services["db"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "pg_isready")
    tools = find_binaries(major=18).directory
    stack.run("migrate", tools / program, *arguments)

    stack.run("migrate", BIN / "penstock", *services["migrate"]["command"])
    program, *arguments = services["roles"]["command"]
    source, target, _ = services["roles"]["volumes"][0].split(":")
    assert target in arguments
    for _ in range(2):  # as often as you like
        stack.run(
            "roles",
            tools / program,
            *(DEPLOY / source if word == target else word for word in arguments),
        )

    (health,) = of_dockerfile("HEALTHCHECK")
    of_image = ["CMD", *health.words]
    app_folder, mounted, _ = services["worker"]["volumes"][0].split(":")
    assert (app_folder, mounted) == (str(tmp_path), of_dockerfile("WORKDIR")[-1].value)
    worker = stack.start(
        "worker", moved(services["worker"]["command"], 8081, port["worker"]), stack.environment("worker")
    )
    stack.becomes_healthy("worker", moved(of_image, 8081, port["worker"]), worker)
    dashboard = stack.start(
        "dashboard",
        moved(services["dashboard"]["command"], 8432, port["dashboard"]),
        stack.environment("dashboard"),
    )
    check = moved(services["dashboard"]["healthcheck"]["test"], 8432, port["dashboard"])
    stack.becomes_healthy("dashboard", check, dashboard)

    # A task runs, and the dashboard shows it and acts.
    environ = stack.environment("dashboard")
    administer, view = (environ[f"PENSTOCK_DASHBOARD_{name}"] for name in ("TOKEN", "VIEW_TOKEN"))
    with closing(app_of(tmp_path, stack.environment("worker"))) as app:
        assert app.tasks["add"].enqueue(1, 2).result(timeout=30) == 3
    with httpx.Client(base_url=f"http://127.0.0.1:{port['dashboard']}") as client:
        assert client.get("/metrics").status_code == 401
        looking = {"Authorization": f"Bearer {view}"}
        pause = "/api/v1/queues/sums/pause"
        eventually(
            lambda: (
                'penstock_workers{state="alive"} 1'
                in client.get("/metrics", headers=looking).raise_for_status().text
            ),
            "the worker is seen",
            30,
        )
        # The role sees the sessions of others, and may write the history.
        text = client.get("/metrics", headers=looking).text
        assert "penstock_vacuum_held_seconds" in text
        assert "penstock_history_newest_sample_timestamp_seconds" in text
        assert client.post(pause, headers=looking).status_code == 403
        done = client.post(pause, headers={"Authorization": f"Bearer {administer}"})
        assert done.status_code == 200, done.text

    # What the image does without a command, on the same database.
    (command,) = of_dockerfile("CMD")
    words = moved(moved(command.words, 8081, port["up"]), 8432, free_port())
    up = stack.start("up", words, {**stack.environment("migrate"), "PENSTOCK_DASHBOARD_TOKEN": administer})
    stack.becomes_healthy("up", moved(of_image, 8081, port["up"]), up)

    for name, process in (("worker", worker), ("dashboard", dashboard), ("up", up)):
        process.terminate()
        patience = services.get(name, {}).get("stop_grace_period", "10s")
        assert process.wait(seconds(patience)) == 0, (tmp_path / f"{name}.log").read_text()
