"""How each fault is done to real pods and nodes, and how it is healed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hack.cluster.errors import ClusterError
from hack.cluster.installation import SYSTEM_NAMESPACE
from hack.soak import host_inspection
from hack.soak.fault_plan import FaultKind, PlannedFault
from hack.soak.soak_history import ROLLOUT, TRAINER, MetricsReading, WorkerInstance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hack.cluster.kubectl import Kubectl
    from hack.soak.shared_volume import SharedVolume
    from hack.soak.soak_job import SoakJob

SLOW_RATE = "2mbit"
OOM_DEADLINE_S = 30.0
NODE_BACK_S = 90.0
_RULES = """
table inet rollcall_chaos {
  chain in { type filter hook input priority 0; policy drop; iifname "lo" accept; }
  chain out { type filter hook output priority 0; policy drop; oifname "lo" accept; }
}
"""
# Joins the victim's control group, then takes memory until the kernel has ended the victim. A
# process that may be killed is chosen by its score, and the victim's was raised.
_EATER = """
import os, sys, time
victim, deadline, group = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), sys.argv[3]
with open(group + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
taken = []
while os.path.exists(f"/proc/{victim}/exe"):  # a zombie has none
    if time.monotonic() > deadline:
        sys.exit("its memory has no limit")
    taken.append(bytearray(b"x" * (8 << 20)))
"""


@dataclass(frozen=True, slots=True)
class FaultContext:
    """What faults are done to.

    `serving` returns the last metrics of the rollouts that serve, and `kept` is a node that is not
    lost ("" if all may be).
    """

    kubectl: Kubectl
    job: SoakJob
    volume: SharedVolume
    serving: Callable[[], Sequence[MetricsReading]]
    kept: str = ""

    def victim(self, role: str, pick: float) -> WorkerInstance:
        """A running worker of that role. ClusterError if there is none."""
        found = [w for w in host_inspection.workers(self.kubectl.namespace) if w.role == role]
        if not found:
            raise ClusterError(f"no {role} runs")
        return found[int(pick * len(found))]

    def server(self, pick: float) -> tuple[WorkerInstance, int]:
        """A rollout and its vLLM, which generates. ClusterError if there is none."""
        found = [
            (reading.worker, pid)
            for reading in self.serving()
            if reading.values.get("requests_running", 0.0) > 0
            and (pid := host_inspection.inference_server(reading.worker)) is not None
        ]
        if not found:
            raise ClusterError("no vLLM generates")
        return found[int(pick * len(found))]

    def node_of(self, worker: WorkerInstance) -> str:
        """The node on which a worker runs. ClusterError if it runs on none any more."""
        groups = (host_inspection.PROC / str(worker.pid) / "cgroup").read_text()
        for node in host_inspection.WORKER_NODES:
            if host_inspection.container_of(node) in groups:
                return node
        raise ClusterError(f"{worker.pod} runs on no node")


@dataclass(frozen=True, slots=True)
class InjectionResult:
    """What was done: the victim, and what undoes it (nothing for what heals by itself)."""

    name: str
    uid: str = ""
    undo: Callable[[], None] | None = None

    def heal(self) -> None:
        """Undo it. Harmless when the victim is gone."""
        if self.undo is not None:
            self.undo()


def inject(fault: PlannedFault, ground: FaultContext) -> InjectionResult:
    """Do it now. ClusterError, KubectlError, OSError or SubprocessError when it cannot be done."""
    return _INJECTORS[fault.kind](ground, fault.pick)


def _kill(role: str) -> Callable[[FaultContext, float], InjectionResult]:
    def kill(ground: FaultContext, pick: float) -> InjectionResult:
        victim = ground.victim(role, pick)
        os.kill(victim.pid, signal.SIGKILL)
        return InjectionResult(victim.pod, victim.uid)

    return kill


def _stop_rollout(ground: FaultContext, pick: float) -> InjectionResult:
    victim = ground.victim(ROLLOUT, pick)
    os.kill(victim.pid, signal.SIGSTOP)
    return InjectionResult(victim.pod, victim.uid, lambda: _go_on(victim.pid))


def _kill_server(ground: FaultContext, pick: float) -> InjectionResult:
    victim, server = ground.server(pick)
    os.kill(server, signal.SIGKILL)
    return InjectionResult(victim.pod, victim.uid)


def _stop_server(ground: FaultContext, pick: float) -> InjectionResult:
    victim, server = ground.server(pick)
    os.kill(server, signal.SIGSTOP)
    return InjectionResult(victim.pod, victim.uid, lambda: _go_on(server))


def _go_on(pid: int) -> None:
    """Continue a stopped process, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _partition(role: str) -> Callable[[FaultContext, float], InjectionResult]:
    def partition(ground: FaultContext, pick: float) -> InjectionResult:
        victim = ground.victim(role, pick)
        node = host_inspection.node_pid(ground.node_of(victim))
        # Its sandbox holds the network; the worker may be restarted meanwhile.
        holder = sandbox(victim)
        host_inspection.in_network_of(holder, "nft", "-f", "-", tools_of=node, stdin=_RULES)

        def mend() -> None:
            with suppress(ClusterError):  # gone with the pod
                host_inspection.in_network_of(
                    holder, "nft", "delete", "table", "inet", "rollcall_chaos", tools_of=node
                )

        return InjectionResult(victim.pod, victim.uid, mend)

    return partition


def _slow_rollout(ground: FaultContext, pick: float) -> InjectionResult:
    victim = ground.victim(ROLLOUT, pick)
    node, holder = host_inspection.node_pid(ground.node_of(victim)), sandbox(victim)
    inside = host_inspection.in_network_of(
        holder, "ip", "-o", "link", "show", "eth0", tools_of=node
    )
    peer = re.search(r"eth0@if(\d+):", inside)
    links = host_inspection.in_network_of(node, "ip", "-o", "link", tools_of=node)
    outside = peer and re.search(rf"^{peer[1]}: ([^@:]+)", links, re.MULTILINE)
    if not outside:
        raise ClusterError(f"no link of the node leads to {victim.pod}: {inside}")
    # This kernel has no netem: bytes each way are limited, which delays them too.
    limit = ("root", "tbf", "rate", SLOW_RATE, "burst", "16kb", "latency", "400ms")
    sides = ((holder, "eth0"), (node, outside[1]))
    for pid, link in sides:
        host_inspection.in_network_of(pid, "tc", "qdisc", "add", "dev", link, *limit, tools_of=node)

    def lift() -> None:
        for pid, link in sides:
            with suppress(ClusterError):  # gone with the pod
                host_inspection.in_network_of(
                    pid, "tc", "qdisc", "del", "dev", link, "root", tools_of=node
                )

    return InjectionResult(victim.pod, victim.uid, lift)


def _oom_rollout(ground: FaultContext, pick: float) -> InjectionResult:
    victim = ground.victim(ROLLOUT, pick)
    # The kernel ends the process with the most memory.
    pid = host_inspection.inference_server(victim) or victim.pid
    (host_inspection.PROC / str(pid) / "oom_score_adj").write_text("1000")
    eater = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            _EATER,
            str(pid),
            str(OOM_DEADLINE_S),
            str(host_inspection.memory_group(pid)),
        ],
        timeout=OOM_DEADLINE_S + 10,
        check=False,
        capture_output=True,
        text=True,
    )
    # The kernel may end the eater too, while the victim's memory is still being given back.
    if (host_inspection.PROC / str(pid) / "exe").exists():
        raise ClusterError(f"the kernel spared {victim.pod}: {eater.stderr[-300:]}")
    return InjectionResult(victim.pod, victim.uid)


def _delete_rollout(ground: FaultContext, pick: float) -> InjectionResult:
    victim = ground.victim(ROLLOUT, pick)
    ground.kubectl.run("delete", "pod", victim.pod, "--grace-period=0", "--force", "--wait=false")
    return InjectionResult(victim.pod, victim.uid)


def _disk_full(ground: FaultContext, _: float) -> InjectionResult:
    ground.volume.fill()
    if ground.volume.bytes_free:
        raise ClusterError(f"{ground.volume.bytes_free} bytes are left on the volume")
    return InjectionResult("checkpoints", undo=ground.volume.free)


def _scale(ground: FaultContext, _: float) -> InjectionResult:
    def scale(replicas: int) -> None:
        ground.kubectl.run("scale", f"rolloutpool/{ground.job.pool}", f"--replicas={replicas}")

    scale(ground.job.scaled)
    return InjectionResult(ground.job.pool, undo=lambda: scale(ground.job.rollouts))


def _kill_operator(ground: FaultContext, _: float) -> InjectionResult:
    pods = ground.kubectl.within(SYSTEM_NAMESPACE).items("pods")
    for pod in pods:
        for pid, command in host_inspection.processes_in_pod(pod["metadata"]["uid"]):
            if "rollcall-operator" in command:
                os.kill(pid, signal.SIGKILL)
                return InjectionResult(pod["metadata"]["name"], pod["metadata"]["uid"])
    raise ClusterError("no operator runs")


def _api_outage(_: FaultContext, __: float) -> InjectionResult:
    pid = host_inspection.process_named("kube-apiserver", node=host_inspection.CONTROL_PLANE)
    os.kill(pid, signal.SIGSTOP)

    return InjectionResult("kube-apiserver", undo=lambda: _go_on(pid))


def _node_loss(ground: FaultContext, pick: float) -> InjectionResult:
    node = _node_to_lose(ground, pick)
    docker = host_inspection.chosen_engine().docker
    docker("kill", "--signal=KILL", node)

    def start() -> None:
        docker("start", node, timeout_s=60)
        deadline = time.monotonic() + NODE_BACK_S
        while not host_inspection.node_pid(node):
            if time.monotonic() > deadline:
                raise ClusterError(f"{node} does not run {NODE_BACK_S:.0f} s after its start")
            time.sleep(0.2)
        ground.volume.attach(node)

    return InjectionResult(node, undo=start)


def _node_to_lose(ground: FaultContext, pick: float) -> str:
    """One that has workers, in half of all cases the trainer's. ClusterError if there is none."""
    roles: dict[str, set[str]] = {}
    for worker in host_inspection.workers(ground.kubectl.namespace):
        with suppress(ClusterError, OSError):  # it has ended since
            roles.setdefault(ground.node_of(worker), set()).add(worker.role)
    roles.pop(ground.kept, None)
    if not roles:
        raise ClusterError(f"no worker runs on another node than {ground.kept}")
    nodes = sorted(roles, key=lambda name: (TRAINER not in roles[name], name))
    return nodes[int(pick * len(nodes))]


def sandbox(worker: WorkerInstance) -> int:
    """The process that holds a pod's network, whatever becomes of its worker; or the worker's."""
    held = [
        pid
        for pid, command in host_inspection.processes_in_pod(worker.uid)
        if "pause" in command[:8]
    ]
    return held[0] if held else worker.pid


_INJECTORS: dict[FaultKind, Callable[[FaultContext, float], InjectionResult]] = {
    FaultKind.KILL_ROLLOUT: _kill(ROLLOUT),
    FaultKind.STOP_ROLLOUT: _stop_rollout,
    FaultKind.PARTITION_ROLLOUT: _partition(ROLLOUT),
    FaultKind.SLOW_ROLLOUT: _slow_rollout,
    FaultKind.OOM_ROLLOUT: _oom_rollout,
    FaultKind.DELETE_ROLLOUT: _delete_rollout,
    FaultKind.KILL_TRAINER: _kill(TRAINER),
    FaultKind.PARTITION_TRAINER: _partition(TRAINER),
    FaultKind.DISK_FULL: _disk_full,
    FaultKind.SCALE: _scale,
    FaultKind.KILL_OPERATOR: _kill_operator,
    FaultKind.API_OUTAGE: _api_outage,
    FaultKind.NODE_LOSS: _node_loss,
    FaultKind.KILL_SERVER: _kill_server,
    FaultKind.STOP_SERVER: _stop_server,
}
