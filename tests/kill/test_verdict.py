"""The verdict itself: it would see what must not be."""

from datetime import UTC, datetime, timedelta

from tests.kill.load import Delivery, Record
from tests.kill.verdict import unexplained

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=1)


def delivery(message: int, attempt: int, after: timedelta = timedelta(0)) -> Delivery:
    return Delivery(message, attempt, f"token {attempt}", START + after + LEASE, START + after)


def verdict(record: Record, *done: tuple[int, str]) -> list[str]:
    """The first words of each thing found."""
    return [found.partition(":")[0] for found in unexplained(record, list(done))]


def test_lost() -> None:
    assert verdict(Record(committed={1, 2}), (1, "t")) == ["2 is lost"]


def test_not_lost_where_the_outcome_is_unknown() -> None:
    assert verdict(Record(committed={1}, maybe_committed={2, 3}), (1, "t"), (2, "t")) == []


def test_out_of_nowhere() -> None:
    assert verdict(Record(), (1, "t")) == ["1 was never sent"]


def test_done_twice() -> None:
    assert verdict(Record(committed={1}), (1, "t"), (1, "t")) == ["1 is done 2 times"]


def test_delivered_while_leased() -> None:
    twice = [delivery(1, 1), delivery(1, 2, LEASE / 2)]
    assert verdict(Record(committed={1}, deliveries=twice), (1, "t")) == ["while it was leased"]


def test_delivered_after_the_lease_ran_out() -> None:
    twice = [delivery(1, 1), delivery(1, 2, LEASE)]
    assert verdict(Record(committed={1}, deliveries=twice), (1, "t")) == []


def test_delivered_after_it_was_given_back() -> None:
    twice = [delivery(1, 1), delivery(1, 2, LEASE / 2)]
    assert verdict(Record(committed={1}, deliveries=twice, given_back={twice[0]}), (1, "t")) == []


def test_the_same_attempt_twice() -> None:
    twice = [delivery(1, 1), delivery(1, 1, LEASE)]
    assert verdict(Record(committed={1}, deliveries=twice), (1, "t")) == ["the same attempt twice"]


def test_delivered_after_it_was_acked() -> None:
    twice = [delivery(1, 1), delivery(1, 2, LEASE)]
    record = Record(committed={1}, deliveries=twice, acked={twice[0]})
    assert verdict(record, (1, "token 1")) == ["after it was acked"]


def test_an_ack_that_did_not_last() -> None:
    once = delivery(1, 1)
    record = Record(committed={1}, deliveries=[once], acked={once})
    assert verdict(record, (1, "token 2")) == ["acked, but done by token 2"]
