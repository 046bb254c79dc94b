"""What was recorded last is not lost when a worker stops: the command flushes like any program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import penstock

MODULE = """
import sys
from collections.abc import Sequence
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
import sentry_sdk
from sentry_sdk.integrations.atexit import AtexitIntegration
from sentry_sdk.transport import Transport
import penstock
from penstock.middleware.opentelemetry import OpenTelemetryMiddleware
from penstock.middleware.sentry import SentryMiddleware

class Printed(SpanExporter):
    def export(self, spans):
        print("exported", *(span.name for span in spans), flush=True)
        return SpanExportResult.SUCCESS

class Flushed(Transport):
    def capture_envelope(self, envelope): ...
    def flush(self, timeout, callback=None):
        print("flushed", flush=True)

provider = TracerProvider()
# In a minute, unless it is shut down before.
provider.add_span_processor(BatchSpanProcessor(Printed(), schedule_delay_millis=60_000))
options = {"dsn": "https://key@example.org/1"}
sentry_sdk.init(
    **options,
    transport=Flushed(options),
    default_integrations=False,
    integrations=[AtexitIntegration(callback=lambda pending, timeout: None)],
)
app = penstock.App(middleware=[OpenTelemetryMiddleware(tracer_provider=provider), SentryMiddleware()])

@app.task(queue="mail")
async def send_mail():
    print("ran", flush=True)
"""


def test_spans_and_events_are_flushed(database18: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    environ = {**os.environ, "PENSTOCK_DATABASE_URL": database18, "PYTHONUNBUFFERED": "1"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "worker", "shop:app"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with penstock.connect(database18) as queue:
            queue.declare_queue("mail")
            queue.send("mail", {}, headers={"task": "send_mail"})
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ran\n"
        worker.send_signal(signal.SIGTERM)
        printed, log = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.communicate()
    assert worker.returncode == 0, log
    assert "exported process mail\n" in printed
    assert "flushed\n" in printed
