"""What clients and database say together: nothing lost, nothing delivered twice without a reason."""

from collections import Counter, defaultdict
from itertools import pairwise

from tests.kill.load import Delivery, Record

DONE = "select id, token from penstock.done"


def unexplained(record: Record, done: list[tuple[int, str]]) -> list[str]:
    """Everything that should not be, given what is done once the queue has been drained."""
    return [
        *_losses(record, done),
        *_repetitions(record),
        *_acks_that_did_not_last(record, done),
    ]


def _losses(record: Record, done: list[tuple[int, str]]) -> list[str]:
    times = Counter(message for message, _ in done)
    return [
        *(f"{message} is lost" for message in record.committed - times.keys()),
        *(
            f"{message} was never sent"
            for message in times.keys() - record.committed - record.maybe_committed
        ),
        *(f"{message} is done {n} times" for message, n in times.items() if n > 1),
    ]


def _repetitions(record: Record) -> list[str]:
    """Two deliveries of a message are explained by a lease that ran out between them, or by a nack."""
    by_message = defaultdict[int, list[Delivery]](list)
    for delivery in record.deliveries:
        by_message[delivery.message].append(delivery)
    found = []
    for deliveries in by_message.values():
        for earlier, later in pairwise(sorted(deliveries, key=lambda d: d.attempt)):
            if earlier.attempt == later.attempt:
                found.append(f"the same attempt twice: {earlier} {later}")
            elif later.claimed_by < earlier.vt and earlier not in record.given_back:
                found.append(f"while it was leased: {earlier} {later}")
            elif earlier in record.acked:
                found.append(f"after it was acked: {earlier} {later}")
    return found


def _acks_that_did_not_last(record: Record, done: list[tuple[int, str]]) -> list[str]:
    tokens = dict(done)
    return [
        f"acked, but done by {tokens.get(delivery.message)}: {delivery}"
        for delivery in record.acked
        if tokens.get(delivery.message) != delivery.token
    ]
