"""Options of calls: what the message gets, what is refused."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import App, InvalidArgument, MessageDetails, Task
from penstock.tasks.task import BoundTask

QUEUE = "test_options"


def simple(x: int = 0, account: str = "acme") -> None: ...


@pytest.fixture
def task(shared: App) -> Task[..., None]:
    return shared.task(queue=QUEUE)(simple)


def message_of(handle: penstock.Handle[Any]) -> MessageDetails:
    found = handle.details()
    assert found is not None
    return found


def test_a_message_without_options(task: Task[..., None]) -> None:
    message = message_of(task.enqueue(x=5))
    assert message.payload == {"x": 5}
    assert message.headers == {"task": "simple"}
    assert (message.priority, message.tenant, message.dedup_key) == (penstock.NORMAL, None, None)
    assert (message.state, message.expires_at, message.due_at) == ("ready", None, None)


def test_each_option_reaches_the_message(task: Task[..., None]) -> None:
    def sent(**options: Any) -> MessageDetails:
        return message_of(task.options(**options).enqueue(1))

    assert sent(priority=penstock.URGENT).priority == 0
    assert sent(tenant="ünï").tenant == "ünï"
    assert sent(dedup_key="only one").dedup_key == "only one"
    assert sent(headers={"trace": [1, {"a": None}]}).headers == {"trace": [1, {"a": None}], "task": "simple"}
    for delay in (60, 60.0, timedelta(minutes=1)):
        message = sent(delay=delay)
        assert message.state == "scheduled"
        assert message.due_at is not None
        assert (message.due_at - message.published_at).total_seconds() == pytest.approx(60, abs=0.5)
    moment = datetime.now(UTC) + timedelta(hours=1)
    assert sent(deliver_after=moment).due_at == moment
    message = sent(ttl=90)
    assert message.expires_at is not None
    assert (message.expires_at - message.published_at).total_seconds() == 90


def test_options_of_the_task_and_of_the_call(shared: App) -> None:
    declared = shared.task(name="declared", queue=QUEUE, priority=3, tenant="acme", ttl=50)(simple)
    message = message_of(declared.enqueue())
    assert (message.priority, message.tenant) == (3, "acme")
    message = message_of(declared.options(priority=0, tenant="other", ttl=5).enqueue())
    assert (message.priority, message.tenant) == (0, "other")
    assert message.expires_at is not None
    assert (message.expires_at - message.published_at).total_seconds() == 5


def test_options_add_up_and_the_last_one_counts(task: Task[..., None]) -> None:
    first = task.options(priority=0, tenant="a")
    second = first.options(tenant="b", dedup_key="added up")
    message = message_of(second.enqueue())
    assert (message.priority, message.tenant, message.dedup_key) == (0, "b", "added up")
    # What was there before is as it was.
    message = message_of(first.enqueue())
    assert (message.priority, message.tenant, message.dedup_key) == (0, "a", None)


def test_a_bound_task_can_be_used_again(task: Task[..., None]) -> None:
    later = task.options(delay=60)
    ids = {later.enqueue(number).id for number in range(3)}
    assert len(ids) == 3


async def test_options_of_all_ways_to_enqueue(shared_dsn: str) -> None:
    async with App(shared_dsn) as app:
        bound = app.task(queue=QUEUE)(simple).options(tenant="a", priority=1, headers={"h": 1}, delay=60)
        handles = [
            await bound.enqueue_async(1),
            *await bound.enqueue_many_async([(1,), {"x": 2}]),
            await asyncio.to_thread(bound.enqueue, 1),
            *await asyncio.to_thread(bound.enqueue_many, [(1,)]),
        ]
        for handle in handles:
            message = await handle.details_async()
            assert message is not None
            assert (message.tenant, message.priority, message.state) == ("a", 1, "scheduled")
            assert message.headers == {"h": 1, "task": "simple"}


BAD: dict[str, list[Any]] = {
    "delay": [-1, "x", True, float("nan"), 2**31, timedelta(seconds=-1)],
    "deliver_after": ["tomorrow", 5, datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC).date()],
    "priority": [-1, 4, "x", True, 1.5],
    "tenant": [5, "", "a\0", "t" * 256, b"x"],
    "ttl": [0, -1, "x", True, float("inf")],
    "dedup_key": [5, "", "a\0", "k" * 501, b"x"],
    "headers": [5, "x", [], ["a"], {1: 2}, {"a": datetime(2026, 1, 1)}, {"a": "\0"}, {"a": float("nan")}],
}


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option, values in BAD.items() for value in values],
    ids=lambda value: ascii(value)[:30],
)
def test_a_bad_option_is_refused_by_name(task: Task[..., None], option: str, value: Any) -> None:
    options = {option: value}
    with pytest.raises(InvalidArgument, match=option):
        task.options(**options).enqueue(1)
    with pytest.raises(InvalidArgument, match=option):
        task.options(delay=1).options(**options).enqueue(1)
    with pytest.raises(InvalidArgument, match=option):
        task.options(**options).enqueue_many([(1,)])


def test_an_unknown_option_is_refused_by_name(unconnected: App) -> None:
    task: Any = unconnected.task(simple)
    for bound in (task, task.options(delay=1)):
        with pytest.raises((InvalidArgument, TypeError), match="nope"):
            bound.options(nope=1)


def test_delay_and_deliver_after_do_not_go_together(task: Task[..., None]) -> None:
    with pytest.raises(InvalidArgument, match=r"delay.*deliver_after"):
        task.options(delay=5, deliver_after=datetime.now(UTC)).enqueue()
    with pytest.raises(InvalidArgument, match=r"delay.*deliver_after"):
        task.options(delay=5).options(deliver_after=datetime.now(UTC)).enqueue()


@pytest.mark.parametrize("header", ["task", "group", "position"])
def test_headers_that_say_what_a_message_is_are_reserved(unconnected: App, header: str) -> None:
    task = unconnected.task(simple)
    with pytest.raises(InvalidArgument, match=f"'{header}'"):
        task.options(headers={header: "blue"})
    with pytest.raises(InvalidArgument, match=f"'{header}'"):
        task.options(delay=1).options(headers={"other": 1, header: 5})


def test_headers_given_are_not_changed(task: Task[..., None]) -> None:
    headers = {"a": 1}
    task.options(headers=headers).enqueue()
    assert headers == {"a": 1}


# Tenants


def tenant_of(bound: BoundTask[Any, Any] | Task[Any, Any], *positional: Any, **named: Any) -> str | None:
    found: Any = bound
    return message_of(found.enqueue(*positional, **named)).tenant


def test_a_tenant_by_arguments(shared: App) -> None:
    task = shared.task(queue=QUEUE, tenant=lambda account: f"of {account}")(simple)
    assert tenant_of(task, 1, "x") == "of x"
    assert tenant_of(task, account="y") == "of y"
    # Arguments that are not given are there with their defaults.
    assert tenant_of(task) == "of acme"
    assert tenant_of(task.options(tenant="other"), 1, "x") == "other"
    messages = [message_of(handle) for handle in task.enqueue_many([(1, "x"), {"account": "y"}, (1,), {}])]
    assert [message.tenant for message in messages] == ["of x", "of y", "of acme", "of acme"]


def test_a_tenant_by_all_arguments(shared: App) -> None:
    task = shared.task(queue=QUEUE, tenant=lambda **given: ",".join(sorted(given)))(simple)
    assert tenant_of(task, 1) == "account,x"


def test_no_tenant_for_some(shared: App) -> None:
    task = shared.task(queue=QUEUE, tenant=lambda x: None if x else "zero")(simple)
    assert tenant_of(task, 1) is None
    assert tenant_of(task, 0) == "zero"
    assert [message_of(handle).tenant for handle in task.enqueue_many([(1,), (0,)])] == [None, "zero"]


@pytest.mark.parametrize("wrong", [5, "", b"x", "t" * 256])
def test_a_tenant_that_is_none_is_refused(shared: App, wrong: Any) -> None:
    task = shared.task(queue=QUEUE, tenant=lambda x: wrong)(simple)  # noqa: ARG005
    with pytest.raises(InvalidArgument, match="tenant"):
        task.enqueue(1)
    with pytest.raises(InvalidArgument, match="tenant"):
        task.enqueue_many([(1,)])


def test_an_error_in_the_function_comes_through(shared: App) -> None:
    task = shared.task(queue=QUEUE, tenant=lambda x: str(1 / x))(simple)
    with pytest.raises(ZeroDivisionError):
        task.enqueue(0)


def test_the_context_is_no_argument_of_a_tenant(shared: App) -> None:
    def handler(context: penstock.TaskContext, x: int) -> None: ...

    with pytest.raises(InvalidArgument, match="context"):
        shared.task(queue=QUEUE, tenant=lambda context: "x")(handler)  # noqa: ARG005
    task = shared.task(name="other", queue=QUEUE, tenant=lambda x: f"{x}")(handler)
    assert tenant_of(task, 5) == "5"
