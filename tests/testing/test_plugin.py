"""The plugin in real runs of pytest."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import psycopg
import pytest

from penstock.embedded import Server
from penstock.testing import VARIABLE

pytest_plugins = ("pytester",)

TASKS = """
    from penstock import App

    app = App("postgresql://no_user@localhost:1/production")
    sent = []

    @app.task(max_attempts=2, retry_delays=60)
    def mail(to: str, times: int = 1) -> None:
        if to == "nobody":
            raise LookupError("who is that?")
        sent.append(to)

    @app.task(queue="async")
    async def mail_later(to: str) -> None:
        await mail.options(delay=3600).enqueue_async(to)
"""

CONFTEST = """
    import pytest
    import psycopg
    import tasks

    @pytest.fixture
    def queue(penstock_tasks):
        penstock_tasks.connect(tasks.app)
        tasks.sent.clear()
        return penstock_tasks
"""

TEMPLATE = """
    @pytest.fixture(scope="session")
    def penstock_template(penstock_template):
        with psycopg.connect(penstock_template) as connection:
            connection.execute("create table orders (id bigint)")
        return penstock_template
"""

TESTS = """
    import pytest
    from datetime import timedelta
    from tasks import mail, mail_later, sent

    def test_enqueued(queue):
        mail.enqueue("ann")
        [message] = queue.assert_enqueued(mail, to="ann")
        assert message.queue == "default"
        queue.assert_not_enqueued(mail_later)
        assert sent == []

    def test_drain(queue, penstock_clock):
        queue.assert_not_enqueued()
        mail_later.enqueue("bob")
        assert [ran.task for ran in queue.drain()] == ["mail_later"]
        penstock_clock.advance(timedelta(hours=1))
        queue.drain()
        assert sent == ["bob"]

    @pytest.mark.parametrize("number", range(3))
    async def test_async(queue, number):
        queue.assert_not_enqueued()
        handle = await mail_later.enqueue_async("carl")
        assert handle.id == 1
        await queue.drain_async(with_scheduled=True)
        assert sent == ["carl"]

    def test_error(queue):
        mail.enqueue("nobody")
        with pytest.raises(LookupError):
            queue.drain()
        [ran] = queue.drain(with_scheduled=True, raise_errors=False)
        assert ran.outcome == "failed"
        assert [dead.reason for dead in queue.dead(mail)] == ["no_attempts_left"]
"""

OPTIONS = (
    *("-W", "error"),
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
    *("-p", "no:cacheprovider"),
    # By the names of their entry points; without all the others it is quicker.
    *("-p", "asyncio", "-p", "xdist", "-p", "penstock"),
)

NEW_MODULES = """
import sys
import pytest
before = set(sys.modules)
import penstock.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with tasks and tests."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(tasks=TASKS)
    return pytester


def test_it_is_installed_as_a_plugin() -> None:
    [found] = importlib.metadata.entry_points(group="pytest11", name="penstock")
    assert found.value == "penstock.testing.plugin"


@pytest.mark.slow
def test_a_project_with_tasks_on_several_workers(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, server18: Server
) -> None:
    project.makepyfile(test_mail=TESTS)
    # The environment goes before the configuration.
    project.makeini("[pytest]\npenstock_dsn = postgresql://no_user@localhost:1/nowhere")
    monkeypatch.setenv(VARIABLE, server18.dsn())
    before = databases_of(server18)
    result = project.runpytest_subprocess(*OPTIONS, "-n", "2")
    result.assert_outcomes(passed=6)
    assert databases_of(server18) == before


def databases_of(server18: Server) -> set[str]:
    with psycopg.connect(server18.dsn()) as connection:
        return {name for (name,) in connection.execute("select datname from pg_database")}


def test_a_server_by_configuration_and_tables_of_its_own(project: pytest.Pytester, server18: Server) -> None:
    configured = server18.dsn() + "&options=-c%20penstock.named_in%3Dconfiguration"
    project.makeini(f"[pytest]\npenstock_dsn = {configured}")
    project.makeconftest(CONFTEST + TEMPLATE)
    project.makepyfile(
        test_server="""
        import psycopg
        import pytest
        from tasks import mail

        def test_server(penstock_server, penstock_dsn):
            for dsn in (penstock_server.dsn(), penstock_dsn):
                with psycopg.connect(dsn) as connection:
                    assert connection.execute("show penstock.named_in").fetchone() == ("configuration",)

        @pytest.mark.parametrize("number", range(2))
        def test_orders(penstock_dsn, number):
            with psycopg.connect(penstock_dsn) as connection:
                connection.execute("insert into orders values (1)")
                assert connection.execute("select count(*) from orders").fetchone() == (1,)

        def test_that_fails(queue):
            mail.enqueue("ann")
            queue.assert_enqueued(mail, to="bob")
        """
    )
    result = project.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(passed=3, failed=1)
    # The line of the test, and no line of ours.
    result.stdout.fnmatch_lines(
        [
            '>*queue.assert_enqueued(mail, to="bob")',
            "E * AssertionError: mail(to='bob') is enqueued 0 times, not once",
            "E * enqueued:",
            "E *   mail(to='ann') in queue 'default'",
            "test_server.py:18: AssertionError",
        ]
    )
    result.stdout.no_fnmatch_line("*__tracebackhide__*")


def test_an_unused_plugin_costs_nothing() -> None:
    answer = subprocess.run([sys.executable, "-c", NEW_MODULES], capture_output=True, text=True, check=True)
    loaded = set(answer.stdout.split())
    assert {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names} == {
        "penstock",
        "penstock.testing",
        "penstock.testing.plugin",
        "penstock.version",
    }
    assert "asyncio" not in loaded
