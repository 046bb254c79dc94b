"""Metrics of runs in a registry of prometheus-client, of one process and of several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.middleware.metrics import MetricsMiddleware
from penstock.middleware.prometheus import BUCKETS, PrometheusCollector

from .contexts import context_of, entered, run
from .outcomes import OUTCOMES

ROOT = Path(__file__).parents[2]


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_busy_while_it_runs() -> None:
    registry = CollectorRegistry()
    middleware = MetricsMiddleware(PrometheusCollector(registry))
    with entered([middleware], context_of()), entered([middleware], context_of()):
        assert value(registry, "penstock_tasks_busy", task="send_mail") == 2
    assert value(registry, "penstock_tasks_busy", task="send_mail") == 0


def test_durations_by_outcome() -> None:
    registry = CollectorRegistry()
    middleware = MetricsMiddleware(PrometheusCollector(registry))
    for _, error, given in OUTCOMES:
        run(middleware, error, **given)
    for outcome in {name for name, _, _ in OUTCOMES}:
        expected = sum(name == outcome for name, _, _ in OUTCOMES)
        name = "penstock_task_duration_seconds"
        assert value(registry, f"{name}_count", task="send_mail", outcome=outcome) == expected
        total = value(registry, f"{name}_sum", task="send_mail", outcome=outcome)
        assert total is not None
        assert 0 < total < 1


def test_buckets() -> None:
    registry = CollectorRegistry()
    collector = PrometheusCollector(registry)
    collector.observe_duration("send_mail", "done", 0.3)
    name, labels = "penstock_task_duration_seconds_bucket", {"task": "send_mail", "outcome": "done"}
    counts = {bound: value(registry, name, **labels, le=str(float(bound))) for bound in BUCKETS}
    assert counts == {bound: float(bound > 0.3) for bound in BUCKETS}

    other = CollectorRegistry()
    PrometheusCollector(other, buckets=[2, 4]).observe_duration("send_mail", "done", 3)
    assert [value(other, name, **labels, le=le) for le in ("2.0", "4.0", "+Inf")] == [0, 1, 1]


def test_what_prometheus_reads() -> None:
    registry = CollectorRegistry()
    run(MetricsMiddleware(PrometheusCollector(registry, "shop")))
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["shop_tasks_busy"].type == "gauge"
    assert families["shop_task_duration_seconds"].type == "histogram"


def test_two_in_one_registry() -> None:
    registry = CollectorRegistry()
    PrometheusCollector(registry)
    with pytest.raises(penstock.InvalidArgument, match="refuses metrics of 'penstock': Duplicated"):
        PrometheusCollector(registry)
    PrometheusCollector(registry, "other")


def test_bad_buckets() -> None:
    with pytest.raises(penstock.InvalidArgument, match="not in sorted order"):
        PrometheusCollector(CollectorRegistry(), buckets=[2, 1])


# The values live in files of a directory; the variable is read when prometheus-client is imported.
PROCESS = """
import os, sys
from penstock.middleware.metrics import MetricsMiddleware
from penstock.middleware.prometheus import PrometheusCollector
from tests.middleware.contexts import context_of, entered, run
middleware = MetricsMiddleware(PrometheusCollector())
run(middleware)
with entered([middleware], context_of()):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


def test_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]

    def collected(name: str, **labels: Any) -> float | None:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
        return value(registry, name, task="send_mail", **labels)

    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{process.pid}\n"
        assert collected("penstock_tasks_busy") == 2
        assert collected("penstock_task_duration_seconds_count", outcome="done") == 2

        # One is killed in the middle of a run, and reported to the collector, as the manual says.
        processes[0].kill()
        processes[0].wait()
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
        multiprocess.mark_process_dead(processes[0].pid)  # type: ignore[no-untyped-call]
        assert collected("penstock_tasks_busy") == 1
        assert collected("penstock_task_duration_seconds_count", outcome="done") == 2
    finally:
        for process in processes:
            process.communicate("")
    assert collected("penstock_tasks_busy") == 0
    assert collected("penstock_task_duration_seconds_count", outcome="done") == 3
