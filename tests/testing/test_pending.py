"""What is enqueued can be asked for, and asserted."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from penstock import HIGH, NORMAL, App, InvalidArgument, Reject
from penstock.testing import Enqueued, TaskTester


@dataclass(frozen=True)
class Order:
    id: int
    total: Decimal


@pytest.fixture
def app(tester: TaskTester) -> App:
    return tester.connect(App())


def test_what_is_enqueued_is_reported_with_all_that_was_said(tester: TaskTester, app: App) -> None:
    @app.task(queue="mail", priority=HIGH)
    def confirm(order: Order, at: datetime, *, urgent: bool = False) -> None: ...

    @app.task
    def other() -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    first = confirm.enqueue(Order(17, Decimal("9.90")), at)
    later = confirm.options(delay=90, tenant="acme", headers={"via": "web"})
    second = later.enqueue(Order(18, Decimal(1)), at, urgent=True)
    other.options(delay=0.5).enqueue()
    assert tester.enqueued(confirm) == tester.enqueued("confirm")
    one, two = tester.enqueued(confirm)
    assert one == Enqueued(
        task="confirm",
        arguments={"order": Order(17, Decimal("9.90")), "at": at},
        queue="mail",
        message_id=first.id,
        delay=0.0,
        due_at=None,
        priority=HIGH,
        tenant=None,
        attempts=0,
        headers={"task": "confirm"},
    )
    assert two.arguments == {"order": Order(18, Decimal(1)), "at": at, "urgent": True}
    assert (two.message_id, two.delay, two.tenant) == (second.id, 90, "acme")
    assert two.headers == {"task": "confirm", "via": "web"}
    assert two.due_at is not None
    assert timedelta(seconds=50) < two.due_at - tester.clock.now() <= timedelta(seconds=90)
    assert [(m.task, m.delay, m.priority) for m in tester.enqueued()] == [
        ("confirm", 0, HIGH),
        ("confirm", 90, HIGH),
        ("other", 0.5, NORMAL),
    ]
    assert tester.enqueued("missing") == []


def test_more_than_a_page(tester: TaskTester, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.testing.pending.PAGE", 3)
    monkeypatch.setattr("penstock.testing.draining.PAGE", 3)

    @app.task
    def work(number: int) -> None:
        raise Reject("no")

    work.enqueue_many([(number,) for number in range(7)])
    work.options(delay=60).enqueue_many([(number,) for number in range(7, 14)])
    assert [m.arguments["number"] for m in tester.enqueued(work)] == list(range(14))
    assert len(tester.drain(with_scheduled=True)) == 14
    assert [m.arguments["number"] for m in tester.dead(work)] == list(range(14))
    assert tester.dead("missing") == []


def test_assertions_that_hold(tester: TaskTester, app: App) -> None:
    @app.task
    def mail(to: str, subject: str = "hello") -> None: ...

    @app.task
    def anything(**facts: object) -> None: ...

    tester.assert_not_enqueued()
    tester.assert_not_enqueued(mail)
    mail.enqueue("ann")
    mail.enqueue("bob", subject="bye")
    [message] = tester.assert_enqueued(mail, to="ann")
    assert message.arguments == {"to": "ann"}
    tester.assert_enqueued(mail, to="ann", subject="hello")
    tester.assert_enqueued("mail", subject="bye")
    tester.assert_enqueued(mail, times=2)
    tester.assert_enqueued(mail, times=0, to="carl")
    tester.assert_not_enqueued(mail, to="ann", subject="bye")
    tester.assert_not_enqueued("missing", what="ever")
    anything.enqueue(color="red", size=3)
    tester.assert_enqueued(anything, size=3)
    tester.assert_not_enqueued(anything, size=4)
    tester.assert_not_enqueued(anything, weight=1)


def test_an_assertion_that_fails_says_what_there_is(tester: TaskTester, app: App) -> None:
    @app.task(max_attempts=2, retry_delays=30)
    def mail(to: str) -> None:
        if to == "nobody":
            raise LookupError("who is that?")
        if to == "devil":
            raise Reject("not him")

    @app.task(queue="other")
    def other(number: int) -> None: ...

    for to in ("ann", "nobody", "devil"):
        mail.enqueue(to)
    tester.drain(raise_errors=False)
    other.options(delay=60, tenant="acme").enqueue(1)
    with pytest.raises(AssertionError) as caught:
        tester.assert_enqueued(mail, to="bob")
    # The delay of a retry counts from the publish: on a slow machine it is a little longer.
    assert re.sub(r"delay 30\.\d s", "delay 30 s", str(caught.value)) == (
        "mail(to='bob') is enqueued 0 times, not once\n"
        "enqueued:\n"
        "  mail(to='nobody') in queue 'default', delay 30 s, run once\n"
        "  other(number=1) in queue 'other', delay 60 s, tenant 'acme'\n"
        "dead:\n"
        "  mail(to='devil') in queue 'default', run once: failed, not him\n"
        "run by drain():\n"
        "  <mail(to='ann') done>\n"
        "  <mail(to='nobody') retried: LookupError('who is that?')>\n"
        "  <mail(to='devil') rejected: Reject('not him')>"
    )
    with pytest.raises(AssertionError, match=r"^other\(\) is enqueued once, not 2 times\n"):
        tester.assert_enqueued(other, times=2)
    with pytest.raises(AssertionError, match=r"^other\(number=1\) is enqueued\nenqueued:\n  mail"):
        tester.assert_not_enqueued(other, number=1)
    with pytest.raises(AssertionError, match=r"^something is enqueued\n"):
        tester.assert_not_enqueued()


def test_nothing_and_a_lot_are_reported_in_short(tester: TaskTester, app: App) -> None:
    @app.task
    def work(number: int) -> None: ...

    with pytest.raises(AssertionError, match=r"^work\(\) is enqueued 0 times, not once\nenqueued: nothing$"):
        tester.assert_enqueued(work)
    work.enqueue_many([(number,) for number in range(30)])
    with pytest.raises(AssertionError, match=r"work\(number=19\) in queue 'default'\n  and 10 more$"):
        tester.assert_not_enqueued(work)


def test_an_argument_that_the_task_does_not_have_is_a_mistake(tester: TaskTester, app: App) -> None:
    @app.task
    def mail(to: str) -> None: ...

    for check in (tester.assert_enqueued, tester.assert_not_enqueued):
        with pytest.raises(
            InvalidArgument, match=r"task 'mail' has no parameter 'too': its arguments are \(to\)"
        ):
            check(mail, too="ann")


def test_apps_have_their_own_database_afterwards(tester: TaskTester) -> None:
    app = App("postgresql://localhost/of_its_own")
    with TaskTester(tester.dsn, app) as other:
        assert app.client is not other.client
        assert other.connect(app) is app
        assert app.client.clock()
    assert "of_its_own" in repr(app.client)
    with pytest.raises(InvalidArgument, match="no app is connected"):
        other.drain()


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """What is deleted while it is open warns; warnings are errors here."""
    yield
    gc.collect()


def others_connected(tester: TaskTester) -> list[tuple[str]]:
    """The last statements of the other sessions in the database of the test."""
    with tester.client.transaction() as transaction:
        return transaction.connection.execute(
            "select query from pg_stat_activity where datname = current_database()"
            " and backend_type = 'client backend' and pid <> pg_backend_pid()"
        ).fetchall()


@pytest.mark.usefixtures("no_leaks")
def test_nothing_stays_open(tester: TaskTester) -> None:
    app = App()

    @app.task(result=True)
    async def work() -> int:
        return 7

    async def wait_for_it() -> int:
        handle = await work.enqueue_async()
        [ran] = await other.drain_async()
        assert ran.result == 7
        return await handle.result_async(timeout=20)

    with TaskTester(tester.dsn, app) as other:
        assert asyncio.run(wait_for_it()) == 7
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(wait_for_it()) == 7
    loop.close()
    # One that was being connected when its loop ended goes with the garbage. A session ends a moment later.
    gc.collect()
    deadline = time.monotonic() + 20
    while others_connected(tester) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert others_connected(tester) == []


async def test_in_a_coroutine(tester: TaskTester) -> None:
    app = App()

    @app.task
    def work() -> None: ...

    async with TaskTester(tester.dsn, app) as other:
        await work.enqueue_async()
        other.assert_enqueued(work)
        client = app.async_client
        other.clock.advance(3600)
    with pytest.raises(Exception, match="closed"):
        await client.clock()
    assert abs(tester.clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
