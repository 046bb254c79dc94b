"""The clock of a database is moved for all sessions that are connected to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import penstock
from penstock.errors import InvalidArgument, PenstockError
from penstock.testing import Clock

DEFINITION = "select pg_get_functiondef('penstock.clock()'::regprocedure)"
NEAR = timedelta(seconds=20)


def test_it_moves_for_everybody_at_once(penstock_dsn: str, penstock_clock: Clock) -> None:
    # A maintain() that runs at the same time would make the message ready, and this consume would not see it.
    with penstock.connect(penstock_dsn, maintain=False) as queue:
        queue.create_queue("mail")
        # The plan of the claim is known to this session, the time in it as well.
        for _ in range(8):
            assert list(queue.consume("mail", wait=0)) == []
        queue.send("mail", "later", delay=3600)
        assert list(queue.consume("mail", wait=0)) == []
        penstock_clock.advance(timedelta(hours=1))
        assert [message.payload for message in queue.consume("mail", wait=0)] == ["later"]
        assert abs(queue.clock() - penstock_clock.now()) < NEAR
        assert abs(queue.clock() - (datetime.now(UTC) + timedelta(hours=1))) < NEAR
        penstock_clock.advance(1800.5)
        assert abs(queue.clock() - (datetime.now(UTC) + timedelta(hours=1.5))) < NEAR


def test_a_lease_ends_when_its_time_is_over(penstock_dsn: str, penstock_clock: Clock) -> None:
    with penstock.connect(penstock_dsn, maintain=False) as queue:
        queue.create_queue("mail")
        queue.send("mail", 1)
        first = next(iter(queue.consume("mail", wait=0, visibility_timeout=30)))
        penstock_clock.advance(31)
        second = next(iter(queue.consume("mail", wait=0)))
        assert (second.id, second.attempt) == (first.id, 2)


def test_any_time_can_be_chosen(penstock_dsn: str, penstock_clock: Clock) -> None:
    wedding = datetime(2031, 5, 4, 12, tzinfo=UTC)
    assert timedelta() <= penstock_clock.move_to(wedding) - wedding < NEAR
    past = datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert timedelta() <= penstock_clock.move_to(past) - past < NEAR
    with penstock.connect(penstock_dsn) as queue:
        queue.create_queue("mail", retain_completed=3600)
        message_id = queue.send("mail", "a thousand years ago")
        for message in queue.consume("mail", wait=0):
            with message:
                assert message.published_at.year in (1999, 2000)
        details = queue.get_message("mail", message_id)
        assert details is not None
        assert details.state == "done"


def test_it_is_given_back_as_it_was(penstock_dsn: str) -> None:
    def definition() -> str:
        with psycopg.connect(penstock_dsn) as connection:
            found = connection.execute(DEFINITION).fetchone()
            assert found is not None
            return str(found[0])

    before = definition()
    with Clock(penstock_dsn) as clock:
        assert abs(clock.now() - datetime.now(UTC)) < NEAR
        clock.advance(86400)
        assert definition() != before
        other = Clock(penstock_dsn)
        with pytest.raises(PenstockError, match="another Clock has moved the clock"):
            other.advance(1)
        other.close()
    assert definition() == before
    with clock:
        assert abs(clock.now() - datetime.now(UTC)) < NEAR


def test_what_makes_no_sense(penstock_clock: Clock) -> None:
    with pytest.raises(InvalidArgument, match="duration must be 0 to"):
        penstock_clock.advance(-1)
    with pytest.raises(InvalidArgument, match="duration must be a number of seconds or a timedelta"):
        penstock_clock.advance("1 hour")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="time must have a time zone"):
        penstock_clock.move_to(datetime(2031, 5, 4))
    with pytest.raises(InvalidArgument, match="time must be a datetime"):
        penstock_clock.move_to("tomorrow")  # type: ignore[arg-type]
