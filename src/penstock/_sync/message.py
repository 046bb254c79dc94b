# Written by tools/unasync.py from src/penstock/_async/message.py:
# change that, run `make generate`.

"""A message that was delivered, and its lease."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock import rows
from penstock.calls import Claimed, Extended
from penstock.concurrency import Block, now
from penstock.errors import LeaseLost, PenstockError
from penstock.models import Receipt
from penstock.payloads import Codec, decode, load_headers
from penstock.values import Duration

if TYPE_CHECKING:
    from .consuming import Consuming

__all__ = ["Lease", "Message"]

T_co = TypeVar("T_co", covariant=True)

logger = logging.getLogger("penstock")

UNREAD = object()


@dataclass(slots=True, eq=False)
class Lease:
    """The state of a message while a consumer holds it."""

    api: Consuming
    # The length that was asked for, and the end by this machine's own clock.
    seconds: float
    deadline: float
    until: int
    # Called with True when a block begins, and with False when it ends.
    in_block: Callable[[Message[Any], bool], None] | None = None
    reraise: bool = False
    is_lost: bool = False
    is_settling: bool = False
    is_settled: bool = False
    # The transaction that settled the message: it may still be open, or rolled back.
    settled_by: Consuming | None = None
    # The transaction, other than that of the claim, in which the caller last settled or extended the message,
    # or tried to.
    joined: Consuming | None = None
    block: Block | None = None
    payload: Any = UNREAD

    def extended(self, extended: Extended, sent_at: float) -> None:
        """The lease was extended by a call that was sent at `sent_at`."""
        self.until = extended.leased_until
        self.deadline = sent_at + extended.lease_seconds

    @property
    def is_over(self) -> bool:
        """Whether the message is settled for good. A transaction that settled it may be rolled back."""
        return self.is_settled and self.settled_by is None

    @property
    def is_locked(self) -> bool:
        """Whether the message is settled in a transaction that is open."""
        return self.is_settled and self.settled_by is not None and self.settled_by._in_transaction()

    @property
    def is_joined(self) -> bool:
        """Whether the message takes part in an open transaction that it was not claimed in."""
        return self.joined is not None and self.joined._in_transaction()

    @property
    def is_in_transaction(self) -> bool:
        """Whether the message was claimed, settled or extended in a transaction that is open."""
        return self.is_joined or self.is_locked or self.api._in_transaction()

    def lose(self) -> None:
        """Another consumer may have the message now: cancel its block, unless it is settled."""
        if self.is_settled or self.is_settling:
            return
        self.is_lost = True
        if self.block is not None:
            self.block.cancel()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Message(Generic[T_co]):
    """A message, leased to the consumer that claimed it.

    `with message:` acks it at the end of the block, or nacks it with the error if the block raises.
    The error is logged, not raised, unless consume() was told to reraise. What was settled in the block is
    left as it is. A cancellation or a KeyboardInterrupt releases it.

    Where the message was claimed or settled in a transaction that is still open at the end of the block, the
    error is always raised, so that the transaction is rolled back. The rollback undoes the claim and the ack.
    """

    _claimed: Claimed
    _codec: Codec[Any] | None
    _lease: Lease

    @property
    def internals(self) -> Claimed:
        """The row that was claimed, with payload and headers as stored.

        For other packages of Penstock; not a part of the API.
        """
        return self._claimed

    @property
    def id(self) -> int:
        """The id that publish returned."""
        return self._claimed.message_id

    @property
    def queue_name(self) -> str:
        """The queue that it was delivered from."""
        return self._claimed.queue_name

    @property
    def payload(self) -> T_co:
        """What was published. Raises PayloadInvalid where it does not fit the model that was asked for."""
        if self._lease.payload is UNREAD:
            self._lease.payload = decode(self._claimed.stored, self._codec)
        value: T_co = self._lease.payload
        return value

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that it was published with; empty where it was without.

        Raises PayloadInvalid where Python cannot read them.
        """
        return load_headers(self._claimed.headers)

    @property
    def token(self) -> str:
        """The token that holds the lease."""
        return self._claimed.token

    @property
    def attempt(self) -> int:
        """Which delivery this is; 1 for the first."""
        return self._claimed.attempt

    @property
    def published_at(self) -> datetime:
        """When it was published, by the clock of the database."""
        at: datetime = rows.moment(self._claimed.published_at)
        return at

    @property
    def leased_until(self) -> datetime:
        """When the lease ends, by the clock of the database."""
        until: datetime = rows.moment(self._lease.until)
        return until

    @property
    def priority(self) -> int:
        """0, most urgent, to 3."""
        return self._claimed.priority

    @property
    def tenant(self) -> str | None:
        """The tenant that the message belongs to, if any."""
        return self._claimed.tenant

    @property
    def receipt(self) -> Receipt:
        """The queue, id and token: enough to settle the message in another process."""
        return Receipt(self._claimed.queue_name, self._claimed.message_id, self._claimed.token)

    @property
    def is_lost(self) -> bool:
        """Whether the lease is known to be lost, or over by the clock of this machine."""
        return self._lease.is_lost or (not self._lease.is_settled and now() > self._lease.deadline)

    def ack(self, *, result: object = None) -> None:
        """The message is done. Raises LeaseLost where the lease is not held any more."""
        self._lease.api.ack(self, result=result)

    def nack(self, *, delay: Duration | None = None, error: str | None = None) -> None:
        """The message failed: deliver it again after the delay or by retry_delays, or bury it."""
        self._lease.api.nack(self, delay=delay, error=error)

    def release(self, *, delay: Duration | None = None) -> None:
        """Give the message back, at once or after the delay. The attempt is not counted."""
        self._lease.api.release(self, delay=delay)

    def reject(self, error: str | None = None) -> None:
        """The message failed for good: move it to the dead letters."""
        self._lease.api.reject(self, error)

    def extend(self, extension: Duration) -> datetime:
        """Hold it for so many seconds longer; returns until when."""
        return self._lease.api.extend(self, extension)

    def __enter__(self) -> Message[T_co]:
        self._lease.block = Block()
        if self._lease.in_block is not None:
            self._lease.in_block(self, True)
            self._lease.block.watch(lambda: self._lease.deadline, self._lease.lose)
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        lease = self._lease
        block, lease.block = lease.block, None
        if block is not None and block.end(exc):
            exc = LeaseLost(f"the lease on {self!r} could not be kept: the block was cancelled")
        in_transaction = lease.is_in_transaction
        try:
            self._settle(exc)
        except PenstockError as failure:
            if lease.reraise or (in_transaction and exc is None):
                raise failure from exc
            logger.warning("%r: %s", self, failure)
        except Exception as failure:
            if exc is None:
                raise
            # The error of the block has most likely broken the transaction: that one has to reach the caller.
            logger.warning("%r could not be settled: %s", self, failure)
            return False
        finally:
            # After settling, not before: a call that waits for a connection may take longer than a lease.
            if lease.in_block is not None:
                lease.in_block(self, False)
        return self._was_handled(exc, in_transaction=in_transaction)

    def _settle(self, exc: BaseException | None) -> None:
        """Ack, nack or release, unless that has been done in the block."""
        lease = self._lease
        if exc is None:
            if not lease.is_settled:
                self.ack()
        elif lease.is_lost or lease.is_joined or lease.is_locked:
            # Lost: another consumer may have the message. In an open transaction: the error makes the caller
            # roll back, and a nack over another connection would wait for that.
            pass
        elif isinstance(exc, Exception):
            if not lease.is_settled or lease.settled_by is not None:
                self._give_back(exc)
        elif not lease.is_settled:
            self.release()

    def _give_back(self, exc: Exception) -> None:
        was_settled = self._lease.is_settled
        try:
            self.nack(error=describe(exc))
        except LeaseLost:
            # The message was acked in a transaction that was committed before the error: it stays acked.
            if not was_settled:
                raise

    def _was_handled(self, exc: BaseException | None, *, in_transaction: bool) -> bool:
        """Whether the error of the block ends here; in an open transaction it never does."""
        if not isinstance(exc, Exception):
            return False
        if self._lease.reraise or in_transaction:
            if isinstance(exc, LeaseLost):
                raise exc  # it may stand in place of a cancellation
            return False
        if isinstance(exc, LeaseLost):
            logger.warning("%s", exc)
        else:
            logger.error("%r failed", self, exc_info=exc)
        return True

    def __repr__(self) -> str:
        return f"<message {self.id} of {self.queue_name!r}, attempt {self.attempt}>"


def describe(exc: BaseException) -> str:
    """An exception in a line, for the history of the message."""
    try:
        text = str(exc)
    except Exception:
        text = ""  # an exception whose text fails is still an exception
    return f"{type(exc).__qualname__}: {text}" if text else type(exc).__qualname__
