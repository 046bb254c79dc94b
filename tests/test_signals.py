"""Handlers of signals, with real signals to this very process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.signals import STOP_SIGNALS, handled, handled_in_loop


@contextmanager
def disposition(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_without_a_loop(number: signal.Signals) -> None:
    before, seen = signal.getsignal(number), []
    with handled(lambda received, _frame: seen.append(received)):
        os.kill(os.getpid(), number)
    assert seen == [number]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_in_a_loop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    seen: asyncio.Queue[signal.Signals] = asyncio.Queue()
    with handled_in_loop(seen.put_nowait):
        os.kill(os.getpid(), number)
        assert await asyncio.wait_for(seen.get(), 5) == number
    assert signal.getsignal(number) is before


async def test_an_ignored_signal_stays_ignored() -> None:
    """As under nohup, or in the background of a script."""
    seen: list[int] = []
    with disposition(signal.SIGHUP, signal.SIG_IGN):
        with handled(lambda received, _frame: seen.append(received)), handled_in_loop(seen.append):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert seen == []


async def test_only_the_signals_that_were_named() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with handled_in_loop(lambda _: None, [signal.SIGQUIT]):
        assert signal.getsignal(signal.SIGTERM) is before
        assert signal.getsignal(signal.SIGQUIT) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
