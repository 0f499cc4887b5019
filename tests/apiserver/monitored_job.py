"""A job of real workers under a real operator, scraped by a real Prometheus while faults happen.

Prometheus runs as the chart's own ServiceMonitor, PodMonitor and PrometheusRule say; only the
thresholds and times of the rules are short, by the chart's values. First nothing goes wrong, then
one fault after the other is made.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from hack.monitoring.dashboard_queries import PanelQuery, panel_queries
from hack.monitoring.prometheus_server import Line, PrometheusServer
from hack.monitoring.scrape_config import pod_targets, service_targets
from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import PODS, RL_JOBS
from rollcall_protocol import pod_contract
from tests.apiserver import rewards_by_file
from tests.apiserver.cluster import Cluster, rendered
from tests.apiserver.cluster_user import (
    ACCOUNT,
    SYSTEM,
    USER,
    ClusterUser,
    eventually,
    example,
    open_user,
)
from tests.apiserver.kubelet import is_ready
from tests.apiserver.operator_process import OperatorProcess
from tests.apiserver.process_kubelet import ProcessKubelet
from tests.process.runtimes import shared_runtimes

NAMESPACE, JOB = "monitored", "reverse"
VARIABLES = {"namespace": NAMESPACE, "job": JOB, "__rate_interval": "15s"}
OPERATOR_POD = "rollcall-operator-0"  # what the operator's process stands in for
LEARNING_STEPS, START_IS_OVER_SECONDS, CALM_SECONDS = 20, 16.0, 15.0
LOOK_SECONDS = 0.5  # between two looks for new targets
THROTTLED_SECONDS = 120.0
AFTER_SECONDS = 8.0  # after a fault, before the next: its effects end
START_SECONDS = 120.0
STEP = 0.5  # between two points of what is kept, seconds

SHORT = "15s"
VALUES: Object = {
    "serviceMonitor": {"enabled": True, "interval": "1s"},
    "podMonitor": {"enabled": True, "interval": "1s"},
    "prometheusRule": {
        "enabled": True,
        "window": SHORT,
        "alerts": {
            "operatorDown": {"for": "0s"},
            "noLeader": {"for": "0s"},
            "reconcileErrors": {"for": "0s", "window": SHORT, "perSecond": 0.02},
            "apiThrottled": {"for": "0s", "window": SHORT},
            "coordinatorSilent": {"for": "0s", "seconds": 4},
            "epochUnacknowledged": {"for": "2s"},
            "rolloutsStale": {"for": "0s"},
            "trainerStarved": {"for": "0s", "waitForBatchRatio": 0.6},
            "rebuildStorm": {"for": "0s", "window": SHORT, "sessions": 1},
            "syncSlow": {"for": "0s", "seconds": 0.2},
            "checkpointFailing": {"window": SHORT},
            "rewardNotFinite": {"window": SHORT},
            "jobStuck": {"for": "2s", "stepSeconds": 4},
        },
    },
}
"""Of the chart. The rules look back as little as a run of minutes allows."""


@dataclass(slots=True)
class MadeFault:
    """When it began and when its effects had their time."""

    name: str
    began: float
    ended: float = 0.0


@dataclass(slots=True)
class Recording:
    """What Prometheus stored of a run: lines by the name of the query, alerts and rules by theirs.

    `calm` is when training had begun and nothing had gone wrong yet. Times are Unix seconds.
    """

    began: float = 0.0
    calm: float = 0.0
    ended: float = 0.0
    faults: list[MadeFault] = field(default_factory=list)
    queries: list[PanelQuery] = field(default_factory=list)
    lines: dict[str, list[Line]] = field(default_factory=dict)
    records: dict[str, list[Line]] = field(default_factory=dict)
    firing: dict[str, list[Line]] = field(default_factory=dict)
    marks: list[Line] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)

    def fault(self, name: str) -> MadeFault:
        return next(fault for fault in self.faults if fault.name == name)


def job(folder: Path) -> Object:
    """The example, with what fills a panel: evaluations, checkpoints, an entropy term."""
    made = example(JOB, replicas=2, tls={"enabled": False})
    spec = made["spec"]
    spec["reward"]["function"] = rewards_by_file.FUNCTION
    spec["trainer"]["device"] = "cpu"
    spec["trainer"]["checkpoint"] = {"everySteps": 10, "volume": {"emptyDir": {}}}
    spec["algorithm"] |= {"maxSteps": 1_000_000, "settings": {"entropyCoefficient": "0.001"}}
    spec["membership"] = {"settleSeconds": 0}
    spec["evaluation"] = {
        "everySteps": 10,
        "source": {"name": "builtin:reverse"},
        "prompts": 4,
        "samples": 1,
    }
    container = spec["rollouts"][0]["template"]["spec"]["containers"][0]
    container["env"].append({"name": rewards_by_file.FILE, "value": str(folder / "not-finite")})
    return made


@dataclass(slots=True)
class MonitoredJob:
    """The parts of a run, which faults act on."""

    user: ClusterUser
    kubelet: ProcessKubelet
    operator: OperatorProcess
    prometheus: PrometheusServer
    folder: Path

    async def step(self) -> int:
        status = (await self.user.get(RL_JOBS, JOB)).get("status", {})
        return int(status.get("progress", {}).get("step", 0))

    async def reach(self, step: int) -> None:
        async def reached() -> bool:
            return await self.step() >= step

        await eventually(reached, f"step {step}", seconds=START_SECONDS)

    # --- faults ------------------------------------------------------------------------------

    async def kill_a_rollout(self) -> None:
        self.kubelet.of_role("rollout")[0].send(signal.SIGKILL)

    async def stop_all_rollouts(self) -> None:
        """They are excluded after 3 s, and the trainer has no samples."""
        await self._paused(self.kubelet.of_role("rollout"), seconds=15.0)

    async def replace_a_rollout_while_the_trainers_node_hangs(self) -> None:
        """An epoch that the coordinator does not get to know; its pod stays Ready."""
        victim, trainer = self.kubelet.of_role("rollout")[0].name, self.kubelet.trainer

        async def is_seen_ready() -> bool:
            return is_ready(await self.user.get(PODS, trainer.name))

        await eventually(is_seen_ready, "the trainer's pod is Ready")
        self.kubelet.unwatched.add(trainer.uid)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._paused([trainer], seconds=24.0))
            await asyncio.sleep(0.5)
            await self.user.delete(PODS, victim)
        self.kubelet.unwatched.clear()

    async def kill_the_trainer(self) -> None:
        self.kubelet.trainer.send(signal.SIGKILL)
        await asyncio.sleep(8.0)  # it imports torch again

    async def give_rewards_that_are_not_finite(self) -> None:
        file = self.folder / "not-finite"
        file.touch()
        await asyncio.sleep(6.0)
        file.unlink()

    async def make_checkpoints_fail(self) -> None:
        """A file takes the place of the folder."""
        volume = self.kubelet.trainer.folder / "rollcall-checkpoints"
        aside = volume.with_name("aside")
        volume.rename(aside)
        volume.touch()
        await asyncio.sleep(8.0)
        volume.unlink()
        aside.rename(volume)

    async def throttle_the_operator(self) -> None:
        """The API server rejects its writes: the one seat of their priority level is taken.

        Creating ConfigMaps takes long, since a webhook that must look at them does not answer. It
        goes on until a reconcile has failed by it.
        """
        as_operator, names = ("--as", USER, "create", "configmap"), itertools.count()
        before = await asyncio.to_thread(self._failed_reconciles)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            made = _one_seat(self.user.namespace, webhook=silent.getsockname()[1])
            for body in made:
                self.user.kubectl("apply", "-f", "-", body=body)
            await asyncio.sleep(1.0)
            async with asyncio.timeout(THROTTLED_SECONDS):
                while await asyncio.to_thread(self._failed_reconciles) == before:
                    async with asyncio.TaskGroup() as tasks:
                        for name in ("first", "second"):
                            create = (*as_operator, f"{name}-{next(names)}")
                            tasks.create_task(asyncio.to_thread(self.user.kubectl, *create))
                        await asyncio.sleep(1.0)
                        # The operator has to write.
                        self.kubelet.of_role("rollout")[0].send(signal.SIGKILL)
            for body in made:
                self.user.kubectl("delete", body["kind"], body["metadata"]["name"])

    def _failed_reconciles(self) -> float:
        counts = self.operator.metrics("rollcall_reconcile_seconds_count")
        return sum(count for series, count in counts.items() if 'result="ok"' not in series)

    async def ask_as_an_outsider(self) -> None:
        url = f"http://{self.kubelet.trainer.address}:{pod_contract.MEMBERSHIP_PORT}"
        async with aiohttp.ClientSession() as session:
            for _ in range(5):
                async with session.put(url + pod_contract.ROSTER_ROUTE, json={}) as answer:
                    assert answer.status == 401
                await asyncio.sleep(1.0)

    async def end_the_operator(self) -> None:
        assert self.operator.terminate() == 0

    async def _paused(self, workers: list[Any], *, seconds: float) -> None:
        for worker in workers:
            worker.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for worker in workers:
                worker.send(signal.SIGCONT)


FAULTS: Mapping[str, Callable[[MonitoredJob], Awaitable[None]]] = {
    "an unauthenticated client asks the coordinator": MonitoredJob.ask_as_an_outsider,
    "rewards are not finite": MonitoredJob.give_rewards_that_are_not_finite,
    "checkpoints cannot be written": MonitoredJob.make_checkpoints_fail,
    "a rollout is killed": MonitoredJob.kill_a_rollout,
    "all rollouts stop": MonitoredJob.stop_all_rollouts,
    "a rollout is replaced while the trainer's node hangs": (
        MonitoredJob.replace_a_rollout_while_the_trainers_node_hangs
    ),
    "the API server throttles the operator": MonitoredJob.throttle_the_operator,
    "the trainer is killed": MonitoredJob.kill_the_trainer,
    "the operator ends": MonitoredJob.end_the_operator,  # the last: nothing reports it afterwards
}


async def record(cluster: Cluster, folder: Path, *, say: Callable[[str], None]) -> Recording:
    """Run the job, make all faults, and take what Prometheus has of it."""
    async with _running(cluster, folder) as running:
        recording = Recording(began=time.time())
        await running.user.apply(job(folder))
        await running.reach(LEARNING_STEPS)
        await asyncio.sleep(START_IS_OVER_SECONDS)  # no rule looks back so far
        recording.calm = time.time()
        await asyncio.sleep(CALM_SECONDS)
        for name, make in FAULTS.items():
            say(f"{time.time() - recording.began:4.0f} s: {name}")
            fault = MadeFault(name, time.time())
            recording.faults.append(fault)
            if name.startswith("the operator ends"):
                recording.targets = running.prometheus.active_targets()
            await make(running)
            await asyncio.sleep(AFTER_SECONDS)
            fault.ended = time.time()
        recording.ended = time.time()
        _take(running.prometheus, recording)
        return recording


def _take(prometheus: PrometheusServer, recording: Recording) -> None:
    """Copy all lines, since Prometheus ends with the run."""

    def lines(expression: str) -> list[Line]:
        begin, end = recording.began, recording.ended
        return prometheus.over_time(expression, begin=begin, end=end, step=STEP)

    recording.queries = list(panel_queries(VARIABLES))
    recording.lines = {query.name: lines(query.expression) for query in recording.queries}
    recording.rules = prometheus.rules()
    for rule in recording.rules:
        if rule["type"] == "alerting":
            series = f'ALERTS{{alertname="{rule["name"]}", alertstate="firing"}}'
            recording.firing[rule["name"]] = lines(series)
        else:
            recording.records[rule["name"]] = lines(rule["name"])
    mark = "sum by (cause) (changes(rollcall_job_epochs_total[10s])) > 0"
    recording.marks = lines(mark)


@contextlib.asynccontextmanager
async def _running(cluster: Cluster, folder: Path) -> AsyncIterator[MonitoredJob]:
    values = folder / "values.json"
    values.write_text(json.dumps(VALUES))
    objects = rendered("--values", str(values))
    flags = ("--namespace", NAMESPACE, "--no-leader-elect", "--reach", "direct")
    async with contextlib.AsyncExitStack() as stack:
        user = await stack.enter_async_context(open_user(cluster.admin, namespace=NAMESPACE))
        log = folder / "operator.log"
        operator = stack.enter_context(
            OperatorProcess(kubeconfig=cluster.operator, log=log, flags=flags)
        )
        await asyncio.to_thread(operator.wait_until_watching)
        prometheus = stack.enter_context(PrometheusServer(folder / "prometheus", objects))
        await stack.enter_async_context(shared_runtimes(folder))
        kubelet = ProcessKubelet(user, folder / "pods")
        stack.push_async_callback(kubelet.close)
        running = MonitoredJob(user, kubelet, operator, prometheus, folder)
        (service,) = (body for body in objects if body["kind"] == "Service")
        tasks = [
            asyncio.create_task(kubelet.run()),
            asyncio.create_task(_discover(running, service)),
        ]
        try:
            yield running
        finally:
            ended = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in ended:
                task.result()


async def _discover(running: MonitoredJob, service: Object) -> None:
    """Show Prometheus the pods of the namespace and the operator, until cancelled."""
    announced = running.operator.wait_for_log("Probes and metrics on port")["message"]
    port = int(announced.rsplit(" ", 1)[1])
    of_operator = service_targets(service, {OPERATOR_POD: "127.0.0.1"}, port=port)
    running.prometheus.discover("ServiceMonitor", of_operator)
    while True:
        pods = await running.user.listed(PODS)
        running.prometheus.discover("PodMonitor", pod_targets(pods))
        await asyncio.sleep(LOOK_SECONDS)


def _one_seat(namespace: str, *, webhook: int) -> tuple[Object, Object, Object]:
    """A priority level with one seat, a schema that puts the operator's writes in it, and a
    webhook at a port of this machine for new ConfigMaps.
    """
    version, name = "flowcontrol.apiserver.k8s.io/v1", "rollcall-one-seat"
    level = {
        "apiVersion": version,
        "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name},
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": 0,
                "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"},
            },
        },
    }
    subject = {"name": ACCOUNT, "namespace": SYSTEM}
    rule = {
        "verbs": ["patch", "create", "update"],
        "apiGroups": ["*"],
        "resources": ["*"],
        "namespaces": [namespace],
    }
    schema = {
        "apiVersion": version,
        "kind": "FlowSchema",
        "metadata": {"name": name},
        "spec": {
            "priorityLevelConfiguration": {"name": name},
            "matchingPrecedence": 2,  # only the schema "exempt" may have 1
            "rules": [
                {
                    "subjects": [{"kind": "ServiceAccount", "serviceAccount": subject}],
                    "resourceRules": [rule],
                }
            ],
        },
    }
    hook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "silent.rollcall.dev",
                "clientConfig": {"url": f"https://127.0.0.1:{webhook}/"},
                "rules": [
                    {
                        "operations": ["CREATE"],
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "resources": ["configmaps"],
                    }
                ],
                "failurePolicy": "Ignore",
                "timeoutSeconds": 8,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    return level, schema, hook
