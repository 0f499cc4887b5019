"""Which victim a fault gets, on workers and processes that a test gives."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any, cast

import pytest

from hack.cluster.errors import ClusterError
from hack.soak import host_inspection
from hack.soak.fault_injection import FaultContext, inject
from hack.soak.fault_plan import FaultKind, PlannedFault
from hack.soak.soak_job import VLLM
from tests.unit.hack.soak.histories import rollout, trainer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.soak.soak_history import MetricsReading, WorkerInstance

SECONDS = 10.0


class Cluster:
    """In the place of kubectl."""

    namespace = "chaos"

    def __init__(self) -> None:
        self.said: list[tuple[str, ...]] = []

    def run(self, *words: str) -> str:
        self.said.append(words)
        return ""


def ground(*serving: MetricsReading, kept: str = "") -> FaultContext:
    return FaultContext(
        cast("Any", Cluster()), VLLM, cast("Any", None), serving=lambda: serving, kept=kept
    )


def fault(kind: FaultKind, *, pick: float = 0.0) -> PlannedFault:
    return PlannedFault(0, kind, 1.0, 5.0, pick)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the vLLM of cpu-b; cpu-a has none."""
    with subprocess.Popen(["sleep", "60"]) as process:
        servers = {"cpu-b": process.pid}
        monkeypatch.setattr(host_inspection, "inference_server", lambda w: servers.get(w.pod))
        yield process
        process.kill()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    status = (host_inspection.PROC / str(process.pid) / "status").read_text()
    return "\nState:\tT" in status


def test_a_vllm_that_generates_is_killed(server: subprocess.Popen[bytes]) -> None:
    busy = [rollout(1, pod, requests_running=4) for pod in ("cpu-a", "cpu-b")]
    done = inject(fault(FaultKind.KILL_SERVER), ground(*busy))
    assert (done.name, done.uid) == ("cpu-b", "uid-cpu-b")
    assert server.wait(timeout=SECONDS) == -signal.SIGKILL


def test_a_vllm_that_generates_is_stopped_and_goes_on(server: subprocess.Popen[bytes]) -> None:
    done = inject(
        fault(FaultKind.STOP_SERVER, pick=0.9), ground(rollout(1, "cpu-b", requests_running=1))
    )
    os.waitpid(server.pid, os.WUNTRACED)
    assert is_stopped(server)
    done.heal()
    assert not is_stopped(server)


def test_healing_a_stop_is_harmless_once_the_agent_has_ended_its_vllm(
    server: subprocess.Popen[bytes],
) -> None:
    done = inject(fault(FaultKind.STOP_SERVER), ground(rollout(1, "cpu-b", requests_running=1)))
    server.kill()
    server.wait(timeout=SECONDS)
    done.heal()


@pytest.mark.parametrize("kind", [FaultKind.KILL_SERVER, FaultKind.STOP_SERVER])
def test_a_vllm_that_has_nothing_to_do_is_no_victim(
    server: subprocess.Popen[bytes], kind: FaultKind
) -> None:
    idle = ground(rollout(1, "cpu-b", requests_running=0), rollout(1, "cpu-a", requests_running=4))
    with pytest.raises(ClusterError, match="no vLLM generates"):
        inject(fault(kind), idle)
    assert server.poll() is None


def test_a_scaled_pool_is_scaled_back() -> None:
    where = ground()
    done = inject(fault(FaultKind.SCALE), where)
    done.heal()
    assert cast("Any", where.kubectl).said == [
        ("scale", f"rolloutpool/{VLLM.pool}", f"--replicas={VLLM.scaled}"),
        ("scale", f"rolloutpool/{VLLM.pool}", f"--replicas={VLLM.rollouts}"),
    ]


class Docker:
    """In the place of an engine; `killed` are the nodes."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def docker(self, *words: str, **_: object) -> str:
        self.killed += [words[-1]] if words[0] == "kill" else []
        return ""


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Docker:
    """A trainer on n2, a rollout on n1."""
    engine = Docker()
    placed: dict[str, str] = {"job-trainer-0": "n2", "cpu-a": "n1"}
    workers = [trainer(1).worker, rollout(1, "cpu-a").worker]

    def node_of(_: FaultContext, worker: WorkerInstance) -> str:
        return placed[worker.pod]

    monkeypatch.setattr(host_inspection, "workers", lambda _: workers)
    monkeypatch.setattr(host_inspection, "chosen_engine", lambda: engine)
    monkeypatch.setattr(FaultContext, "node_of", node_of)
    return engine


def test_in_half_of_all_cases_the_trainers_node_is_lost(nodes: Docker) -> None:
    for pick in (0.0, 0.49, 0.51, 0.99):
        inject(fault(FaultKind.NODE_LOSS, pick=pick), ground())
    assert nodes.killed == ["n2", "n2", "n1", "n1"]


def test_the_node_that_has_the_rollouts_image_is_not_lost(nodes: Docker) -> None:
    inject(fault(FaultKind.NODE_LOSS, pick=0.99), ground(kept="n1"))
    assert nodes.killed == ["n2"]


def test_no_node_is_lost_that_has_no_worker(nodes: Docker) -> None:
    host_inspection.workers("chaos").pop()
    with pytest.raises(ClusterError, match="no worker runs on another node than n2"):
        inject(fault(FaultKind.NODE_LOSS), ground(kept="n2"))
    assert nodes.killed == []
