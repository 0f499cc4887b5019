"""A Prometheus in the cluster's network scrapes pods as the chart's monitors say."""

import json
import math
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from hack.cluster import lifecycle
from hack.cluster.examples import example
from hack.cluster.kubectl import Kubectl, name_of
from hack.demo.job_progress import JobWatcher
from hack.monitoring.dashboard_queries import panel_queries
from hack.monitoring.prometheus_server import PrometheusServer
from hack.monitoring.scrape_config import pod_targets, service_targets
from hack.soak import host_inspection
from tests.cluster.jobs import deadlines

ROOT = Path(__file__).parents[3]
JOB, RELEASE, SYSTEM = "reverse", "rollcall-operator", "rollcall-system"
OPERATOR_PORT = 8080  # of its container
LOOK_SECONDS = 2.0
VALUES = {
    "serviceMonitor": {"enabled": True, "interval": "2s"},
    "podMonitor": {"enabled": True, "interval": "2s"},
    "prometheusRule": {"enabled": True},
}
# What neither this job nor this test makes; tests/apiserver/test_monitored_job.py does.
NOT_HERE = {
    "fleet/Alerts that fire/{{alertname}} {{namespace}}/{{job}}",
    "fleet/Requests to the API server, a second/status {{status}}",
    "job/Mismatch, clipping, entropy/entropy (nats)",
    "job/Reward/held-out prompts",
    "weight-sync/Refused requests and messages/{{what}}",
    # The operator takes a deleted pod off the roster before the coordinator misses it.
    "weight-sync/Time to detect a failed member/{{group}} {{cause}}",
}


@pytest.mark.slow
@pytest.mark.timeout(deadlines.WHOLE_TEST)
def test_every_panel_shows_data_of_pods(kubectl: Kubectl, tmp_path: Path) -> None:
    with scraping(kubectl, tmp_path) as prometheus:
        began = time.time()
        kubectl.apply(example("reverse.yaml", maxSteps=100_000))
        job = JobWatcher(kubectl, JOB)
        seen = job.until(lambda s: s.step >= 40 and s.ready >= 2, seconds=deadlines.STARTED)
        victim = name_of(kubectl.rollouts(JOB)[0])
        kubectl.run("delete", "pod", victim, "--grace-period=0", "--force")
        job.until(lambda s: s.epoch >= seen.epoch + 2 and s.ready >= 2, seconds=deadlines.STARTED)
        time.sleep(10 * LOOK_SECONDS)  # so that rates of the newcomer are known
        variables = {"namespace": kubectl.namespace, "job": JOB, "__rate_interval": "20s"}
        empty = {
            query.name
            for query in panel_queries(variables)
            if not has_data(prometheus, query.expression, began)
        }
        assert empty <= NOT_HERE
        broken = [rule for rule in prometheus.rules() if rule["health"] == "err"]
        assert broken == []


def has_data(prometheus: PrometheusServer, expression: str, began: float) -> bool:
    lines = prometheus.over_time(expression, begin=began, end=time.time(), step=2)
    return any(math.isfinite(value) for line in lines for _, value in line.points)


@contextmanager
def scraping(kubectl: Kubectl, folder: Path) -> Iterator[PrometheusServer]:
    """A Prometheus in the network of the control plane's node, where all pods can be reached."""
    node = kubectl.get("node", host_inspection.CONTROL_PLANE)
    addresses = {a["type"]: a["address"] for a in node["status"]["addresses"]}
    pid = host_inspection.node_pid(host_inspection.CONTROL_PLANE)
    server = PrometheusServer(
        folder / "prometheus",
        rendered(folder),
        rules_every="2s",
        prefix=("nsenter", "--target", str(pid), "--net"),
        address=addresses["InternalIP"],
    )
    over = threading.Event()
    with server as running:
        looking = threading.Thread(target=discover, args=(kubectl, running, over))
        looking.start()
        try:
            yield running
        finally:
            over.set()
            looking.join()


def discover(kubectl: Kubectl, prometheus: PrometheusServer, over: threading.Event) -> None:
    """Show Prometheus the job's pods and the operator's, again and again."""
    system = kubectl.within(SYSTEM)
    service = system.get("service", f"{RELEASE}-metrics")
    selector = ",".join(f"{k}={v}" for k, v in service["spec"]["selector"].items())
    while not over.is_set():
        prometheus.discover("PodMonitor", pod_targets(kubectl.items("pods")))
        operators = {
            name_of(pod): pod["status"].get("podIP", "")
            for pod in system.items("pods", "--selector", selector)
        }
        there = {name: address for name, address in operators.items() if address}
        prometheus.discover("ServiceMonitor", service_targets(service, there, port=OPERATOR_PORT))
        over.wait(LOOK_SECONDS)


def rendered(folder: Path) -> list[dict[str, object]]:
    """The monitors and rules of the chart, as the release's."""
    values = folder / "values.json"
    values.write_text(json.dumps(VALUES))
    command: list[str | Path] = [
        lifecycle.program("helm"),
        "template",
        RELEASE,
        ROOT / "charts" / RELEASE,
    ]
    command += ["--namespace", SYSTEM, "--kube-version", "1.36.0", "--values", values]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [body for body in yaml.safe_load_all(done.stdout) if body]
