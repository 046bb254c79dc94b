"""Metrics for Prometheus, collected by prometheus-client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidArgument

from .metrics import RunOutcome

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram
except ImportError as exc:
    raise ImportError(
        "penstock.middleware.prometheus needs prometheus-client: pip install 'penstock[prometheus]'"
    ) from exc

__all__ = ["BUCKETS", "PrometheusCollector"]

# From tasks that do almost nothing to half an hour.
BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class PrometheusCollector:
    """Has `<namespace>_tasks_busy{task}` and `<namespace>_task_duration_seconds{task,outcome}`.

    registry: prometheus-client's own by default. A registry takes one collector of a namespace: share it.
    Works in the multiprocess mode of prometheus-client: busy is the sum over the live processes.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        namespace: str = "penstock",
        *,
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        registry = REGISTRY if registry is None else registry
        try:
            self._busy = Gauge(
                "tasks_busy",
                "Runs of the task that are under way",
                ["task"],
                namespace=namespace,
                registry=registry,
                multiprocess_mode="livesum",
            )
            self._duration = Histogram(
                "task_duration_seconds",
                "How long runs of the task took, by how they ended",
                ["task", "outcome"],
                namespace=namespace,
                registry=registry,
                buckets=buckets,
            )
        except ValueError as exc:
            raise InvalidArgument(f"prometheus-client refuses metrics of {namespace!r}: {exc}") from exc

        # Keep the labelled metrics, because a look-up by labels takes longer than counting.
        self._gauges = dict[str, Gauge]()
        self._histograms = dict[tuple[str, RunOutcome], Histogram]()

    def inc_busy(self, task: str) -> None:
        self._gauge(task).inc()

    def dec_busy(self, task: str) -> None:
        self._gauge(task).dec()

    def observe_duration(self, task: str, outcome: RunOutcome, seconds: float) -> None:
        found = self._histograms.get((task, outcome))
        if found is None:
            found = self._histograms[task, outcome] = self._duration.labels(task, outcome)
        found.observe(seconds)

    def _gauge(self, task: str) -> Gauge:
        found = self._gauges.get(task)
        if found is None:
            found = self._gauges[task] = self._busy.labels(task)
        return found
