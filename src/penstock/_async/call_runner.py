"""What all parts of the API stand on: something that carries calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import msgspec

from penstock.errors import MessageUnreadable
from penstock.payloads import Codec, codec_of
from penstock.sql_call import Call

__all__ = ["UNREADABLE_STATES", "AsyncCallRunner", "Progress", "Timed", "unreadable"]

T = TypeVar("T")
Progress = Callable[[int], None]


# The server could not send the answer: text that is too long, a damaged file, bytes that are no text.
UNREADABLE_STATES = ("54", "XX", "22021", "22P05")


def unreadable(call: Call[Any], exc: BaseException) -> MessageUnreadable:
    """The error of a claim that brings a message which the server cannot send."""
    return MessageUnreadable(
        f"{call.function}: the server cannot send a message, and nothing was claimed: {exc}",
        hint="reject_unreadable() moves such messages to the dead letters; roll back before you call it",
    )


class Timed(msgspec.Struct, Generic[T], frozen=True):
    """The result of a call, and when it was sent: a lease that it gives began then or later."""

    sent_at: float
    result: T


class AsyncCallRunner:
    """Runs calls: on a client's own connections, or in a transaction of the caller."""

    def __init__(self, codec: Codec[Any] | None) -> None:
        self._codec = codec

    async def _run(self, call: Call[T]) -> T:
        timed = await self._run_timed(call)
        return timed.result

    async def _run_timed(self, call: Call[T]) -> Timed[T]:
        raise NotImplementedError

    async def _run_many(
        self, many: AsyncIterator[Call[list[int]]], progress: Progress | None, atomic: bool
    ) -> list[int]:
        raise NotImplementedError

    def _in_transaction(self) -> bool:
        """Whether a transaction is open in which the calls take part."""
        raise NotImplementedError

    def _codec_for(self, model: Any) -> Codec[Any] | None:
        return self._codec if model is None else codec_of(model)
