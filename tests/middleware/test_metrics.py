"""What a metrics collector is told of each run."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import penstock
from penstock.middleware.metrics import MetricsCollector, MetricsMiddleware, outcome_of
from penstock.tasks.outcomes import Snooze

from .collecting import Collector
from .contexts import context_of, entered, run
from .outcomes import OUTCOMES, Shipwreck


class Broken(Collector):
    """Fails in some of its methods."""

    def __init__(self, *methods: str) -> None:
        super().__init__()
        for name in methods:
            setattr(self, name, self.fail)

    def fail(self, *_: Any) -> None:
        raise Shipwreck("collector")


@pytest.mark.parametrize(("outcome", "error", "given"), OUTCOMES)
def test_each_outcome_has_its_name(outcome: str, error: BaseException | None, given: dict[str, Any]) -> None:
    collector = Collector()
    run(MetricsMiddleware(collector), error, **given)
    assert [(task, seen) for task, seen, _ in collector.observed] == [("send_mail", outcome)]
    assert collector.busy == {"send_mail": 0}
    assert collector.most_busy == 1


def test_a_run_that_was_called_off_is_not_done() -> None:
    context = context_of()
    context.cancelled.set()
    assert outcome_of(context, None) == "cancelled"
    # What it raised after that says more.
    assert outcome_of(context, Shipwreck()) == "failed"
    assert outcome_of(context, Snooze(1)) == "snoozed"


def test_busy_is_how_many_run() -> None:
    collector = Collector()
    middleware = MetricsMiddleware(collector)
    with entered([middleware], context_of()):
        assert collector.busy == {"send_mail": 1}
        with entered([middleware], context_of()), entered([middleware], context_of(task_name="other")):
            assert collector.busy == {"send_mail": 2, "other": 1}
        assert collector.busy == {"send_mail": 1, "other": 0}
    assert [seen[0] for seen in collector.observed] == ["other", "send_mail", "send_mail"]
    first, second, third = (seconds for _, _, seconds in collector.observed)
    assert 0 < first < second < third


@pytest.mark.parametrize("methods", [("inc_busy",), ("dec_busy",), ("observe_duration",)])
def test_a_collector_that_fails_does_no_harm(
    methods: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    collector = Broken(*methods)
    middleware = MetricsMiddleware(collector)
    for _ in range(3):
        run(middleware)
        run(middleware, Shipwreck("on rocks"))
    # Said once, with the traceback.
    [record] = caplog.records
    assert (record.name, record.levelno) == ("penstock.middleware.metrics", logging.ERROR)
    assert record.exc_info is not None
    assert record.exc_info[0] is Shipwreck
    # The other methods were called all the same; what could not be counted up is not counted down.
    assert len(collector.observed) == (0 if methods == ("observe_duration",) else 6)
    assert collector.busy == {"inc_busy": {}, "dec_busy": {"send_mail": 6}}.get(methods[0], {"send_mail": 0})


def test_an_interrupt_in_the_collector_is_not_swallowed() -> None:
    class Interrupted(Collector):
        def inc_busy(self, task: str) -> None:
            raise KeyboardInterrupt(task)

    with pytest.raises(KeyboardInterrupt), MetricsMiddleware(Interrupted()).run(context_of()):
        pass


def test_a_collector_has_three_methods() -> None:
    class Halfway:
        def inc_busy(self, task: str) -> None: ...

    bad: Any = Halfway()
    with pytest.raises(penstock.InvalidArgument, match=r"no method dec_busy, observe_duration: .*Halfway"):
        MetricsMiddleware(bad)
    good: MetricsCollector = Collector()
    MetricsMiddleware(good)
