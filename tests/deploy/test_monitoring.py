"""The Grafana dashboard and the alerts: on the metrics of a real dashboard, asked by a real Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock import Client
from penstock.calls import GRANT_STATISTICS
from penstock.dashboard import Access, Permission, Tokens
from penstock.embedded import Server
from tests.conftest import Servers
from tests.dashboard.conftest import Browser, Served
from tests.deploy.conftest import FreePort
from tests.deploy.files import DEPLOY, alerts, exprs_of, read_dashboard, read_yaml
from tests.embedded.processes import eventually

TOKEN, VIEW_TOKEN = "may-administer", "may-look"
# Labels that Prometheus adds to each metric of a target.
OF_THE_TARGET = {"job", "instance"}
METRIC = re.compile(r"\b(penstock_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")

Samples = dict[str, list[dict[str, str]]]


@dataclass(frozen=True, slots=True)
class Shop:
    """A dashboard of queues in every state. samples: the labels of each sample of a scrape, by metric."""

    served: Served
    samples: Samples


@pytest.fixture(scope="module")
def shop(servers: Servers, server18: Server) -> Iterator[Shop]:
    with ExitStack() as stack:
        dsn = stack.enter_context(servers.database(server18))
        admin = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        admin.execute(GRANT_STATISTICS.encode())
        stack.callback(admin.execute, b"revoke pg_read_all_stats from penstock_viewer")
        with Client(dsn, maintain=False) as queue:
            _fill(queue)
            tokens = {
                TOKEN: Access("operator", Permission.ADMINISTER),
                VIEW_TOKEN: Access("prometheus", Permission.VIEW),
            }
            served = Served(dsn, authenticate=Tokens(tokens))
            stack.callback(served.stop)
            yield Shop(served, _scraped(served))


def _fill(queue: Client) -> None:
    queue.create_queue("orders", max_active=10)
    queue.create_queue("mail", max_delivery_attempts=1)
    queue.create_queue("tenants", tenant_max_active=1)
    queue.create_queue("paused")
    queue.send_many("orders", [{}] * 5)
    queue.send("orders", {}, delay=3600)
    queue.consume_batch("orders", batch_size=2)
    queue.send_many("tenants", [{}] * 3, tenant="acme")
    queue.send("paused", {})
    queue.pause_queue("paused")
    queue.send("mail", {})
    (message,) = queue.consume_batch("mail")
    message.nack(error="ValueError: no such address")
    queue.register_worker(
        "token", hostname="host", pid=1, version="0.1.0", queues=["mail"], tasks=["send"], concurrency=10
    )
    # It is late: so the doctor has a finding.
    late = queue.clock() - timedelta(hours=2)
    queue.put_schedule("nightly", "orders", {}, definition={"every": 60}, next_at=late)
    queue.maintain()
    queue.sample()


def _scraped(served: Served) -> Samples:
    """What /metrics has when the doctor has looked."""
    found: Samples = {}
    with served.client(headers={"Authorization": f"Bearer {VIEW_TOKEN}"}) as client:

        def is_complete() -> bool:
            found.clear()
            for family in text_string_to_metric_families(client.get("/metrics").raise_for_status().text):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append(sample.labels)
            return "penstock_doctor_findings" in found

        eventually(is_complete, "the doctor has looked", 30)
    return found


def used(expr: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Each metric of an expression, with its matchers: the label, the operator, the value."""
    for name, matchers in METRIC.findall(expr):
        yield name, MATCHER.findall(matchers)


def faults(expr: str, samples: Samples) -> Iterator[str]:
    """What an expression uses that no sample has."""
    labels = set(OF_THE_TARGET)
    for name, matchers in used(expr):
        if name not in samples:
            yield f"there is no metric {name}"
            continue
        of_metric = set[str]().union(*samples[name])
        labels |= of_metric
        for label, operator, value in matchers:
            if label in OF_THE_TARGET:
                continue
            if label not in of_metric:
                yield f"{name} has no label {label}"
            elif operator in ("=", "=~") and not value.startswith("$"):
                known = {sample[label] for sample in samples[name]}
                for each in value.split("|") if operator == "=~" else [value]:
                    if each not in known:
                        yield f"no sample of {name} has {label}={each}"
    for names in GROUPING.findall(expr):
        for label in filter(None, (each.strip() for each in names.split(","))):
            if label not in labels:
                yield f"no metric of {expr} has the label {label}"


def run(*command: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Without a Prometheus


def test_the_grafana_dashboard_uses_what_is_there(shop: Shop) -> None:
    exprs = list(exprs_of(read_dashboard()))
    found = [f"{title}: {fault}" for title, expr, _ in exprs for fault in faults(expr, shop.samples)]
    assert found == []
    shown = {name for _, expr, _ in exprs for name, _ in used(expr)}
    assert shop.samples.keys() - shown == set(), "metrics that no panel shows"
    for title, expr, legend in exprs:
        grouped = {each.strip() for names in GROUPING.findall(expr) for each in names.split(",")}
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped | OF_THE_TARGET, title


def test_the_alerts_use_what_is_there(shop: Shop) -> None:
    found = [f"{rule['alert']}: {fault}" for rule in alerts() for fault in faults(rule["expr"], shop.samples)]
    assert found == []


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        ("penstock_nothing > 0", "there is no metric penstock_nothing"),
        ('penstock_queue_messages{colour="red"}', "penstock_queue_messages has no label colour"),
        ('penstock_queue_messages{state="gone"}', "no sample of penstock_queue_messages has state=gone"),
        ("sum by (tenant) (penstock_queues)", "no metric of sum by (tenant) (penstock_queues) has the label"),
    ],
)
def test_what_is_not_there_is_noticed(shop: Shop, expr: str, fault: str) -> None:
    (found,) = faults(expr, shop.samples)
    assert found.startswith(fault)


def test_the_grafana_dashboard_is_well_formed() -> None:
    dashboard = read_dashboard()
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert variables == {"datasource", "job", "instance", "queue"}
    built_in = {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) == variables | built_in
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert dashboard["id"] is None, "the number of a dashboard belongs to one Grafana"
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"], panel["title"]
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        # Every panel obeys the variables.
        for target in panel["targets"]:
            for name, matchers in used(target["expr"]):
                given = {label for label, _, value in matchers if value == f"${label}"}
                wanted = OF_THE_TARGET | ({"queue"} if name.startswith("penstock_queue_") else set())
                assert given == wanted, (panel["title"], name)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "two panels in one place"


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    fires: dict[str, set[bool]] = {rule["alert"]: set() for rule in alerts()}
    for test in read_yaml("prometheus/alerts_test.yml")["tests"]:
        for case in test["alert_rule_test"]:
            fires[case["alertname"]].add(bool(case["exp_alerts"]))
    assert {name: seen for name, seen in fires.items() if seen != {True, False}} == {}
    for rule in alerts():
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description"}


# With Debian's


def test_promtool_accepts_the_alerts_and_their_tests(promtool: Path) -> None:
    run(promtool, "check", "rules", DEPLOY / "prometheus" / "alerts.yml")
    run(promtool, "test", "rules", DEPLOY / "prometheus" / "alerts_test.yml")


def test_promtool_accepts_each_expression_of_the_grafana_dashboard(promtool: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": _filled(expr)}
        for number, (_, expr, _) in enumerate(exprs_of(read_dashboard()))
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", path)


def _filled(expr: str) -> str:
    """An expression as Grafana sends it with all variables at "All"."""
    return re.sub(r"\$(?:job|instance|queue)\b", ".*", expr).replace("$__rate_interval", "1m")


class Asked:
    """A Prometheus that runs, asked by its API."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._process = process
        self._log = log

    def get(self, path: str, **query: str) -> Any:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[Any]:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return list(self.get("query", query=expr)["result"])
        except OSError:
            return []  # it starts


@pytest.fixture
def asked(
    prometheus: Path, promtool: Path, shop: Shop, free_port: FreePort, tmp_path: Path
) -> Iterator[Asked]:
    """A Prometheus with deploy/prometheus, but for the address of its target and the pace."""
    config = read_yaml("prometheus/scrape.yml")
    config["global"] = {"scrape_interval": "300ms", "evaluation_interval": "300ms"}
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8432"]}]
    job["static_configs"] = [{"targets": [shop.served.url.removeprefix("http://")]}]
    (tmp_path / "scrape.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "alerts.yml").write_bytes((DEPLOY / "prometheus" / "alerts.yml").read_bytes())
    (tmp_path / job["authorization"]["credentials_file"]).write_text(f"{VIEW_TOKEN}\n")
    run(promtool, "check", "config", tmp_path / "scrape.yml")
    port, log = free_port(), tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={tmp_path / 'scrape.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Asked(port, process, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def test_prometheus_scrapes_and_every_panel_has_data(asked: Asked, shop: Shop) -> None:
    eventually(lambda: asked.query('up{job="penstock"} == 1'), "Prometheus scrapes with the token", 30)
    (target,) = asked.get("targets")["activeTargets"]
    assert target["lastError"] == ""
    # Something to count between two scrapes.
    eventually(lambda: asked.query("penstock_dashboard_actions_total"), "actions are known", 30)
    with shop.served.client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        Browser(client).post("/api/v1/queues/orders/pause").raise_for_status()
        Browser(client).post("/api/v1/queues/orders/resume").raise_for_status()
    for title, expr, _ in exprs_of(read_dashboard()):
        eventually(partial(asked.query, _filled(expr)), f"{title} shows something: {expr}", 20)
    rules = [rule for group in asked.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in alerts()}

    def all_are_evaluated() -> bool:
        found = [rule for group in asked.get("rules")["groups"] for rule in group["rules"]]
        return all(rule["health"] == "ok" for rule in found)

    eventually(all_are_evaluated, "the alerts are evaluated", 20)
    # A metric that is not there would look like silence.
    firing = {each["labels"]["alertname"] for each in asked.get("alerts")["alerts"]}
    assert "PenstockScrapeFails" not in firing
    assert "PenstockSamplingStopped" not in firing
