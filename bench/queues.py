"""What a benchmark does to a queue, and Penstock's way of doing it (`bench.reference` has the other).

Each of send, claim, ack and nack is one round trip, in binary, through a prepared statement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import ClassVar

from psycopg.pq.abc import PGresult

from bench import wire
from bench.wire import Wire

QUEUE = "bench"
IDLE_QUEUE = "idle"
LEASE_SECONDS = 3600
KEPT_SECONDS = 86400
SMALL_JSON = b'{"order": 1234567, "customer": "acme", "amount": 99.50, "x": 1}'

MESSAGE_ID, PAYLOAD, ATTEMPTS, PUBLISHED_AT = range(4)
"""The columns of what `claim` returns, on both sides."""


@cache
def payloads(count: int) -> bytes:
    """A binary jsonb[] of so many small messages: built once, so that a send costs the client nothing."""
    return wire.array(wire.JSONB_OID, [wire.json(SMALL_JSON)] * count)


@cache
def repeated(token: bytes, count: int) -> bytes:
    """A binary text[] of one token so many times."""
    return wire.array(wire.TEXT_OID, [token] * count)


class Queue(ABC):
    """One side's queue on one connection."""

    side: ClassVar[str]
    claim_text: ClassVar[str]
    ack_text: ClassVar[str]
    """By which the server's statistics know a claim and an ack of many."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @abstractmethod
    def send(self, count: int) -> None:
        """Put in so many messages, in one call."""

    @abstractmethod
    def claim(self, count: int) -> PGresult:
        """Lease up to so many messages."""

    @abstractmethod
    def ack(self, ids: list[bytes], *, kept: bool) -> int:
        """Finish leased messages, with a record in the history or without; returns how many."""

    @abstractmethod
    def nack(self, message_id: bytes, delay_seconds: int) -> None:
        """Give a leased message back, to be delivered after a delay."""


class Penstock(Queue):
    """Penstock, by the functions of its API."""

    side = "penstock"
    claim_text = "penstock.consume_messages_batch("
    ack_text = "penstock.ack_messages("

    def __init__(self, dsn: str, token: str, queue: str = QUEUE) -> None:
        super().__init__(Wire(dsn))
        self._queue = queue.encode()
        self._token = token.encode()
        prepare = self.wire.prepare
        columns = "message_id, payload, delivery_attempts, published_at"
        self._send_one = prepare("select penstock.send_message($1::text, $2::jsonb)")
        self._send = prepare("select penstock.send_messages($1::text, $2::jsonb[])")
        self._claim_one = prepare(
            f"select {columns} from penstock.consume_message($1::text, $2::text, $3::int)"
        )
        self._claim = prepare(
            f"select {columns} from penstock.consume_messages_batch($1::text, $2::text, $3::int, $4::int)"
        )
        self._ack_one = prepare("select penstock.ack_message($1::text, $2::bigint, $3::text)")
        self._ack = prepare("select penstock.ack_messages($1::text, $2::bigint[], $3::text[])")
        self._nack = prepare(
            "select penstock.nack_message($1::text, $2::bigint, $3::text, $4::int, 'nacked')"
        )

    def send(self, count: int) -> None:
        if count == 1:
            self.wire.run(self._send_one, (self._queue, wire.json(SMALL_JSON)))
        else:
            self.wire.run(self._send, (self._queue, payloads(count)))

    def claim(self, count: int) -> PGresult:
        lease = (self._queue, self._token, wire.integer(LEASE_SECONDS))
        if count == 1:
            return self.wire.run(self._claim_one, lease)
        return self.wire.run(self._claim, (*lease, wire.integer(count)))

    def ack(self, ids: list[bytes], *, kept: bool) -> int:  # noqa: ARG002 - kept is a setting of the queue
        if len(ids) == 1:
            result = self.wire.run(self._ack_one, (self._queue, ids[0], self._token))
            return 1 if result.get_value(0, 0) == b"\x01" else 0
        tokens = repeated(self._token, len(ids))
        return self.wire.run(self._ack, (self._queue, wire.bigint_array(ids), tokens)).ntuples

    def nack(self, message_id: bytes, delay_seconds: int) -> None:
        self.wire.run(self._nack, (self._queue, message_id, self._token, wire.integer(delay_seconds)))
