"""What the figures mean, in sentences for readers that did not write the benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .figures import Figure

__all__ = ["meaning"]

FAR_MS = 1.0
"""A round trip that takes longer goes through a network worth speaking of."""
NO_DISK = 1.5
"""A commit that takes less than so many round trips does not wait for a disk."""

SHARING = 1.5
"""Several senders that get in more than so many times what one does need not wait for a disk each."""


def meaning(figures: Iterable[Figure]) -> list[str]:
    """A sentence or two for each conclusion that several figures allow together."""
    found = {figure.name: figure for figure in figures}
    return [*_yardsticks(found), *_sending(found), *_draining(found), *_waiting(found)]


def _yardsticks(found: dict[str, Figure]) -> Iterator[str]:
    trip, commit = _middle(found, "round-trip"), _middle(found, "commit")
    if trip is not None and trip > FAR_MS:
        yield f"The network takes {trip:.1f} ms of every call: put more messages into one, or come nearer."
    if trip is None or commit is None:
        return
    if commit < NO_DISK * trip:
        yield (
            f"A commit ({commit:.2f} ms) takes hardly longer than a round trip ({trip:.2f} ms): "
            "fsync or synchronous_commit is off, or the disk has a cache with a battery."
        )
    else:
        yield (
            f"A commit takes {commit:.2f} ms, {commit - trip:.2f} ms of it on the disk (fsync): "
            f"one connection cannot commit more than {1e3 / commit:,.0f} times a second."
        )


def _sending(found: dict[str, Figure]) -> Iterator[str]:
    one, batch, several = (_rate(found, name) for name in ("send", "send-batch", "send-concurrent"))
    if one and batch:
        yield f"Batches of 100 go in {batch / one:.1f} times as fast as single messages."
    if one and several:
        senders = found["send-concurrent"].clients
        why = ": their commits share the disk." if several > SHARING * one else "."
        yield f"{senders} senders get in {several / one:.1f} times as many as one{why}"


def _draining(found: dict[str, Figure]) -> Iterator[str]:
    fill, drain = _rate(found, "send-concurrent"), _rate(found, "drain")
    if fill and drain:
        consumers, senders = found["drain"].clients, found["send-concurrent"].clients
        verdict = "keep up with" if drain >= fill else "do not keep up with"
        yield f"{consumers} consumers ({drain:,.0f}/s) {verdict} {senders} senders ({fill:,.0f}/s)."


def _waiting(found: dict[str, Figure]) -> Iterator[str]:
    latency, commit = _middle(found, "latency"), _middle(found, "commit")
    if latency is None:
        return
    text = f"An idle consumer has a message {latency:.2f} ms after it was sent"
    yield f"{text}, {commit:.2f} ms of them for the commit." if commit else f"{text}."


def _middle(found: dict[str, Figure], name: str) -> float | None:
    figure = found.get(name)
    return None if figure is None else figure.p50_ms


def _rate(found: dict[str, Figure], name: str) -> float | None:
    figure = found.get(name)
    return None if figure is None else figure.per_second
