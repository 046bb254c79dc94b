"""Which session watches a queue, and what if that session is busy, stopped, or dies at a bad moment."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

import psycopg
import pytest

import penstock.watch
from penstock import AsyncClient, Client, calls
from penstock.watch import Role, Watch
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql

# A session that stands by looks after 0.8 to 1.2 seconds; the rest is for a slow machine.
SLOW_POLL_SECONDS = 5.0
# A session that is notified takes milliseconds. Tests of that switch slow polls off.
PROMPT_SECONDS = 5.0


class Consumer:
    """Consumes in a thread, and handles each message for as long as the test lets it."""

    def __init__(self, client: Client, queue: str) -> None:
        self.client = client
        self.queue = queue
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._consumer = client.consume(queue)
        self._got: Queue[Any] = Queue()
        self._thread = threading.Thread(target=self._run, name="consumer")
        self._thread.start()

    def _run(self) -> None:
        for message in self._consumer:
            message.ack()
            self._got.put(message.payload)
            self.may_go_on.wait(30)

    def next(self, timeout: float) -> Any:
        return self._got.get(timeout=timeout)

    def has_nothing(self) -> bool:
        return self._got.empty()

    @property
    def watch(self) -> Watch | None:
        runtime: Any = self.client._runtime
        found = runtime._listener._watches.get(self.queue)
        return None if found is None else found[0]

    @property
    def role(self) -> Role | None:
        return None if self.watch is None else self.watch.role

    @property
    def is_next(self) -> bool:
        return self.watch is not None and self.watch.is_next

    def has_looked(self) -> bool:
        """Whether it has looked since the role of its session changed."""
        return self.watch is not None and self.watch._looked_at > self.watch._began_at

    def stop(self) -> None:
        self.may_go_on.set()
        self._consumer.stop()
        self._thread.join(15)
        assert not self._thread.is_alive()


@pytest.fixture
def consumers(make_client: MakeClient, tcp_dsn: str, queue: str) -> Iterator[Callable[[], Consumer]]:
    """Starts consumers, each with its own client."""
    started: list[Consumer] = []

    def start() -> Consumer:
        started.append(Consumer(make_client(tcp_dsn, maintain=False), queue))
        return started[-1]

    yield start
    for consumer in started:
        consumer.stop()


def send(sql: Sql, payload: object) -> int:
    (message_id,) = sql.execute("select penstock.send_message('q', %s)", (str(payload),)).fetchone() or (0,)
    return int(message_id)


def keys_of(sql: Sql) -> calls.WatchKeys:
    call = calls.watch_keys("q")
    return call.parse(sql.execute(call.text, call.parameters).fetchall())


@contextmanager
def session(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def take(connection: psycopg.Connection[Any], key: int) -> None:
    # The session of a test before may not have come to its end.
    connection.execute("set lock_timeout = '10s'")
    connection.execute("select pg_advisory_lock(%s)", (key,))


def becomes(consumer: Consumer, role: Role) -> None:
    """Wait for a role of a waiting consumer, and for the look that follows: it would get the next message."""
    eventually(
        lambda: consumer.role is role and consumer.has_looked(), f"the session becomes {role.value}", 15
    )


@pytest.mark.usefixtures("no_polling")
def test_one_of_several_is_notified(consumers: Callable[[], Consumer], sql18: Sql) -> None:
    everyone = [consumers() for _ in range(3)]

    def one_is_idle() -> bool:
        roles = [one.role for one in everyone]
        return roles.count(Role.IDLE) == 1 and roles.count(Role.STANDBY) == 2

    for number in range(5):
        eventually(one_is_idle, "one is idle, the others stand by")
        send(sql18, number)
        eventually(lambda: any(not one.has_nothing() for one in everyone), "one gets it", PROMPT_SECONDS)
        (got,) = (one for one in everyone if not one.has_nothing())
        assert got.next(1) == number


@pytest.mark.usefixtures("no_polling")
def test_a_session_without_room_hands_over(consumers: Callable[[], Consumer], sql18: Sql) -> None:
    first = consumers()
    becomes(first, Role.IDLE)
    second = consumers()
    becomes(second, Role.STANDBY)
    first.may_go_on.clear()
    send(sql18, 1)
    assert first.next(PROMPT_SECONDS) == 1
    becomes(second, Role.IDLE)
    send(sql18, 2)
    assert second.next(PROMPT_SECONDS) == 2


def line_up(consumers: Callable[[], Consumer], number: int) -> list[Consumer]:
    """The first watches, the second is next, the others stand by."""
    everyone = [consumers()]
    becomes(everyone[0], Role.IDLE)
    everyone.append(consumers())
    eventually(lambda: everyone[1].is_next, "the second is next", 15)
    for _ in range(number - 2):
        everyone.append(consumers())
        becomes(everyone[-1], Role.STANDBY)
        eventually(lambda: not everyone[-1].watch or not everyone[-1].watch._may_try, "it has tried", 15)
    assert [one.is_next for one in everyone] == [False, True] + [False] * (number - 2)
    return everyone


def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements by which sessions try to watch from now on."""
    tried: list[str] = []

    def note(name: str) -> None:
        statement: Callable[[Sequence[calls.WatchKeys]], str] = getattr(calls, name)

        def noted(queues: Sequence[calls.WatchKeys]) -> str:
            tried.append(name)
            return statement(queues)

        monkeypatch.setattr(calls, name, noted)

    note("try_to_watch")
    note("try_to_watch_or_be_next")
    return tried


@pytest.mark.usefixtures("no_polling")
def test_a_handover_wakes_the_next_session_alone(
    consumers: Callable[[], Consumer], sql18: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one that is next, it wakes all that stand by: one of them watches, one is next from then on."""
    everyone = line_up(consumers, 5)
    tried = tries(monkeypatch)
    everyone[0].may_go_on.clear()
    send(sql18, 1)
    assert everyone[0].next(PROMPT_SECONDS) == 1
    becomes(everyone[1], Role.IDLE)
    # A notification to all would have come with the one to the next session.
    time.sleep(0.2)
    assert tried == ["try_to_watch"]
    assert not any(one.is_next for one in everyone)
    everyone[1].may_go_on.clear()
    send(sql18, 2)
    assert everyone[1].next(PROMPT_SECONDS) == 2
    rest = everyone[2:]
    eventually(lambda: [one.role for one in rest].count(Role.IDLE) == 1, "one of the others watches", 15)
    eventually(lambda: [one.is_next for one in rest].count(True) == 1, "another one is next", 15)
    assert tried == ["try_to_watch"] + ["try_to_watch_or_be_next"] * 3


@pytest.mark.usefixtures("no_polling")
def test_a_session_is_next_once_however_often_it_tries(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Advisory locks count: when it watches, another session can be next."""
    first, second = line_up(consumers, 2)
    tried = tries(monkeypatch)
    while len(tried) < 3:
        before = len(tried)
        sql18.execute(f'notify "{keys_of(sql18).handover_channel}"'.encode())
        eventually(lambda before=before: len(tried) > before, "it has tried in vain", 15)  # type: ignore[misc]
    first.may_go_on.clear()
    send(sql18, 1)
    becomes(second, Role.IDLE)
    with session(tcp_dsn) as other:
        take(other, keys_of(sql18).next)


def test_a_handover_before_the_next_session_listens_is_not_missed(
    sql18: Sql, tcp_dsn: str, queue: str
) -> None:
    keys = keys_of(sql18)
    with session(tcp_dsn) as watching, session(tcp_dsn) as following:
        take(watching, keys.watching)
        got = following.execute(calls.try_to_watch_or_be_next([keys]).encode()).fetchone()
        assert got == (str(keys.next),)
        watching.execute(calls.hand_over(keys, is_idle=False).encode())
        listens, tries_again = calls.hear_as_next([keys]).split("; ")
        following.execute(listens.encode())
        assert following.execute(tries_again.encode()).fetchone() == (str(keys.watching),)


def test_a_session_that_is_next_and_hangs_costs_a_second(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str
) -> None:
    with session(tcp_dsn) as hanging:
        take(hanging, keys_of(sql18).next)
        first = consumers()
        becomes(first, Role.IDLE)
        second = consumers()
        becomes(second, Role.STANDBY)
        first.may_go_on.clear()
        for number in range(10):
            send(sql18, number)
            eventually(lambda: not first.has_nothing() or not second.has_nothing(), "one gets it")
            if not first.has_nothing():
                break
            # It happened to look.
            assert second.next(1) == number
        assert first.next(1) == number
        send(sql18, "-1")
        assert second.next(SLOW_POLL_SECONDS) == -1


@pytest.mark.usefixtures("no_polling")
def test_a_session_that_stops_is_next_no_more(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str
) -> None:
    _, second = line_up(consumers, 2)
    second.stop()
    with session(tcp_dsn) as other:
        take(other, keys_of(sql18).next)


@pytest.mark.parametrize("is_watched", [False, True], ids=["handed over", "watched"])
def test_a_session_that_steps_back_passes_on_a_handover_that_it_could_not_heed(
    sql18: Sql, tcp_dsn: str, queue: str, is_watched: bool
) -> None:
    keys = keys_of(sql18)
    with session(tcp_dsn) as watching, session(tcp_dsn) as following, session(tcp_dsn) as ear:
        ear.execute(calls.listen(keys.handover_channel))
        take(watching, keys.watching)
        take(following, keys.next)
        if not is_watched:
            # To the one that is next, which has no room.
            watching.execute(calls.hand_over(keys, is_idle=False))
        following.execute(calls.step_back([keys], tells=True))
        following.execute(f"notify \"{keys.handover_channel}\", 'end'")
        heard = [
            notification.payload for notification in ear.notifies(timeout=5, stop_after=1 + (not is_watched))
        ]
        assert heard == (["end"] if is_watched else ["", "end"])
        watching.execute("set lock_timeout = '1ms'")
        take(watching, keys.next)


@pytest.mark.usefixtures("no_polling")
def test_a_session_that_stops_hands_over(consumers: Callable[[], Consumer], sql18: Sql) -> None:
    first = consumers()
    becomes(first, Role.IDLE)
    second = consumers()
    becomes(second, Role.STANDBY)
    first.stop()
    becomes(second, Role.IDLE)
    send(sql18, 1)
    assert second.next(PROMPT_SECONDS) == 1


@pytest.mark.usefixtures("no_polling")
def test_a_client_that_closes_hands_over(consumers: Callable[[], Consumer], sql18: Sql) -> None:
    first = consumers()
    becomes(first, Role.IDLE)
    second = consumers()
    becomes(second, Role.STANDBY)
    first.client.close()
    becomes(second, Role.IDLE)


def test_the_next_session_watches_after_the_death_of_one(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str
) -> None:
    keys = keys_of(sql18)
    with session(tcp_dsn) as dying:
        take(dying, keys.watching)
        take(dying, keys.idle)
        consumer = consumers()
        becomes(consumer, Role.STANDBY)
        sql18.execute("select pg_terminate_backend(%s)", (dying.info.backend_pid,))
        becomes(consumer, Role.IDLE)


@pytest.mark.parametrize("is_idle", [False, True], ids=["polling", "idle"])
def test_a_session_that_hangs_while_it_watches_costs_a_second(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str, is_idle: bool
) -> None:
    keys = keys_of(sql18)
    with session(tcp_dsn) as hanging:
        take(hanging, keys.watching)
        if is_idle:
            take(hanging, keys.idle)
        consumer = consumers()
        becomes(consumer, Role.STANDBY)
        for number in range(3):
            send(sql18, number)
            assert consumer.next(SLOW_POLL_SECONDS) == number
        assert consumer.role is Role.STANDBY


def test_a_send_that_is_committed_after_its_test_is_found(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str
) -> None:
    """The send met no idle session. A session becomes idle and looks, and only then the send is committed."""
    with session(tcp_dsn) as sender, sender.transaction():
        send(sender, 1)
        consumer = consumers()
        becomes(consumer, Role.IDLE)
        # All early looks are over.
        time.sleep(1.0)
        assert consumer.has_nothing()
    assert consumer.next(SLOW_POLL_SECONDS) == 1


def test_a_send_that_is_rolled_back_after_its_test_wakes_no_session(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str
) -> None:
    consumer = consumers()
    becomes(consumer, Role.IDLE)
    with session(tcp_dsn) as sender, sender.transaction(force_rollback=True):
        send(sender, 1)
    send(sql18, 2)
    assert consumer.next(SLOW_POLL_SECONDS) == 2


@pytest.mark.usefixtures("no_polling")
def test_a_sender_that_is_stopped_in_its_test_does_not_stop_a_session_from_being_idle(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str
) -> None:
    """It polls until the sender goes on."""
    keys = keys_of(sql18)
    with session(tcp_dsn) as sender:
        sender.execute("select pg_try_advisory_lock_shared(%s)", (keys.idle,))
        consumer = consumers()
        becomes(consumer, Role.POLLING)
        send(sql18, 1)
        assert consumer.next(PROMPT_SECONDS) == 1
        # A slow machine may have handed over and taken the watch again in between.
        becomes(consumer, Role.POLLING)
        sender.execute("select pg_advisory_unlock_shared(%s)", (keys.idle,))
        becomes(consumer, Role.IDLE)


def test_a_busy_queue_is_polled_and_sends_do_not_notify(
    consumers: Callable[[], Consumer], sql18: Sql, tcp_dsn: str
) -> None:
    consumer = consumers()
    becomes(consumer, Role.IDLE)
    with session(tcp_dsn) as ear:
        ear.execute(calls.listen(keys_of(sql18).channel))
        number, deadline, ids = 0, time.monotonic() + 15, [0]
        while number < penstock.watch.BUSY_EVENTS // 2 or consumer.role is not Role.POLLING:
            assert time.monotonic() < deadline
            ids.append(send(sql18, number))
            assert consumer.next(SLOW_POLL_SECONDS) == number
            number += 1
        # Without a pause, so that the queue is not quiet in between.
        for more in range(number, number + 200):
            send(sql18, more)
        assert [consumer.next(SLOW_POLL_SECONDS) for _ in range(200)] == list(range(number, number + 200))
        heard = [int(notification.payload) for notification in ear.notifies(timeout=0.2)]
        assert set(heard) <= set(ids)
        becomes(consumer, Role.IDLE)
        last = send(sql18, "-1")
        assert consumer.next(SLOW_POLL_SECONDS) == -1
        assert [int(notification.payload) for notification in ear.notifies(timeout=5, stop_after=1)] == [last]


def test_two_sessions_that_want_to_poll(consumers: Callable[[], Consumer], sql18: Sql) -> None:
    """One polls, and gets what it can; the other one stands by."""
    first, second = consumers(), consumers()
    eventually(lambda: {first.role, second.role} == {Role.IDLE, Role.STANDBY}, "their roles are clear")
    for number in range(300):
        send(sql18, number)
    got: list[int] = []

    def all_came() -> bool:
        for consumer in (first, second):
            while True:
                try:
                    got.append(consumer.next(0.01))
                except Empty:
                    break
        return len(got) == 300

    eventually(all_came, "all messages come", 15)
    assert sorted(got) == list(range(300))
    eventually(lambda: {first.role, second.role} == {Role.IDLE, Role.STANDBY}, "the queue is quiet again")


@pytest.mark.usefixtures("no_polling")
def test_a_freed_permit_wakes_a_consumer(consumers: Callable[[], Consumer], sql18: Sql) -> None:
    sql18.execute("select penstock.alter_queue('q', max_active => 1, priority_shares => '{0,0,0,0}')")
    send(sql18, 1)
    send(sql18, 2)
    found = sql18.execute("select message_id, consumer_token from penstock.consume_message('q')").fetchone()
    assert found is not None
    consumer = consumers()
    becomes(consumer, Role.IDLE)
    time.sleep(0.2)
    assert consumer.has_nothing()
    sql18.execute("select penstock.ack_message('q', %s, %s)", found)
    assert consumer.next(PROMPT_SECONDS) == 2


@pytest.mark.usefixtures("no_polling")
def test_many_consumers_of_a_client_look_one_at_a_time(
    make_client: MakeClient, tcp_dsn: str, queue: str, sql18: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send costs a few looks, not one for each consumer."""
    looks: list[int] = []
    looked = penstock.watch.Watch.looked

    def counted(self: penstock.watch.Watch, flag: Any, found: int, took: float) -> float:
        looks.append(found)
        return looked(self, flag, found, took)

    client = make_client(tcp_dsn, maintain=False)
    started = [Consumer(client, queue) for _ in range(50)]
    try:
        becomes(started[0], Role.IDLE)
        runtime: Any = client._runtime
        watch = runtime._listener._watches[queue][0]
        eventually(lambda: len(watch._waiting) == 50, "all wait")
        time.sleep(0.3)
        monkeypatch.setattr(penstock.watch.Watch, "looked", counted)
        for number in range(10):
            send(sql18, number)
            eventually(lambda: any(not one.has_nothing() for one in started), "one gets it")
            for one in started:
                if not one.has_nothing():
                    assert one.next(1) == number
            eventually(lambda: len(watch._waiting) == 50, "all wait again")
        assert sum(looks) == 10
        # The one that finds it, the next in line, and a look of each when it waits again.
        assert len(looks) <= 60
    finally:
        for one in started:
            one.stop()


async def test_a_consumer_that_is_cancelled_twice_leaves_the_line(
    tcp_dsn: str, queue: str, sql18: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it releases what its claim brought."""
    async with AsyncClient(tcp_dsn, maintain=False) as client:
        got: Queue[Any] = Queue()
        releasing = asyncio.Event()

        async def consume() -> None:
            async for message in client.consume(queue):
                await message.ack()
                got.put(message.payload)

        async def slow(_self: Any) -> None:
            releasing.set()
            await asyncio.sleep(60)

        first, second = asyncio.create_task(consume()), asyncio.create_task(consume())
        runtime: Any = client._runtime

        def in_line() -> int:
            found = runtime._listener._watches.get(queue)
            return 0 if found is None else len(found[0]._waiting)

        while in_line() < 2:
            await asyncio.sleep(0.01)
        monkeypatch.setattr("penstock._async.consumer.AsyncConsumer._release_unread", slow)
        first.cancel()
        await releasing.wait()
        first.cancel()
        await asyncio.wait({first})
        assert in_line() == 1
        send(sql18, 1)
        await asyncio.to_thread(got.get, True, SLOW_POLL_SECONDS)
        monkeypatch.undo()
        second.cancel()
        await asyncio.wait({second})
