"""The soak: a job, the plan's faults, a calm at the end, and what was seen of it all."""

from __future__ import annotations

import json
import math
import subprocess
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hack.cluster.errors import ClusterError, KubectlError
from hack.cluster.kubectl import Kubectl, wait_for
from hack.soak import fault_injection, host_inspection, leftover_resources, soak_job
from hack.soak.cluster_observer import ClusterObserver
from hack.soak.invariants import LEARNED, violations
from hack.soak.shared_volume import SharedVolume
from hack.soak.soak_history import (
    ROLLOUT,
    InjectedFault,
    Leftovers,
    MetricsReading,
    SoakHistory,
)
from hack.soak.soak_statistics import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hack.soak.fault_plan import PlannedFault
    from hack.soak.soak_job import SoakJob

CALM_S, HEAL_S = 15.0, 120.0
FIRST_STEP = 5
VOLUME_MIB = 48


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """What to do: the plan, and whether weights reach the rollouts (else the verdict must fail).

    `node` is where all rollouts of `job` run, "" if they may run anywhere.
    """

    plan: Sequence[PlannedFault]
    seconds: float
    job: SoakJob = soak_job.TINY
    node: str = ""
    weight_sync: bool = True
    record: Path | None = None
    """A file for everything that was seen, to look into what is wrong."""


def run(kubectl: Kubectl, options: SoakOptions, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Run it in kubectl's namespace, which should be a fresh one; returns what is to be printed.

    Faults end early only with this process; whatever happens they are healed and the job is
    deleted.
    """
    shared = host_inspection.shared_memory(
        [host_inspection.node_pid(node) for node in host_inspection.ALL_NODES]
    )
    job = options.job
    history = SoakHistory(time.time(), soak_job.MAX_STALENESS, wanted=job.rollouts)
    with ExitStack() as stack:
        volume = stack.enter_context(SharedVolume(kubectl.namespace, mebibytes=VOLUME_MIB))
        for thing in volume.manifests(kubectl.namespace):
            kubectl.apply(thing)
            if thing["kind"] == "PersistentVolume":
                stack.callback(_remove_volume, kubectl, thing["metadata"]["name"])
        kubectl.apply(soak_job.manifest(job, node=options.node, weight_sync=options.weight_sync))
        ground = fault_injection.FaultContext(
            kubectl, job, volume, serving=lambda: _serving(history), kept=options.node
        )
        watcher = ClusterObserver(kubectl, job.name, history)
        with watcher:
            wait_for("the first steps", lambda: _has_begun(history), seconds=job.start_s)
            history.began = time.time()
            say(f"{job.rollouts} rollouts serve")
            _Injecting(ground, history, say).carry_out(options)
            least = LEARNED if options.weight_sync else -math.inf
            _come_to_rest(history, say, seconds=job.rest_s, least=least)
        history.ended = time.time()
        say("deleting the job")
        trace = leftover_resources.JobTraces(
            uids=frozenset(watcher.uids), networks=frozenset(watcher.networks), shared=shared
        )
        history.leftovers = _delete(kubectl, job.name, trace)
    if options.record is not None:
        with options.record.open("w", encoding="utf-8") as target:
            json.dump(asdict(history), target, default=str)
    result = figures(history) | {"violations": violations(history)}
    return result | {"looks_that_failed": len(watcher.trouble)}


def _delete(kubectl: Kubectl, job: str, trace: leftover_resources.JobTraces) -> Leftovers | None:
    """What is left of the deleted job; None if a look missed the running job's things too."""
    before = leftover_resources.look(kubectl, trace)
    kubectl.run("delete", "rljob", job, "--wait=false")
    if before.objects and before.processes and before.namespaces and before.mounts:
        return leftover_resources.wait_until_gone(kubectl, trace)
    return None


class _Injecting:
    """Carries out a plan: a thread for each fault, so that they may overlap."""

    def __init__(
        self, ground: fault_injection.FaultContext, history: SoakHistory, say: Callable[[str], None]
    ):
        self._ground, self._history, self._say = ground, history, say
        self._threads: list[threading.Thread] = []

    def carry_out(self, options: SoakOptions) -> None:
        began = time.monotonic()
        for fault in options.plan:
            time.sleep(max(0.0, fault.at - (time.monotonic() - began)))
            thread = threading.Thread(target=self._one, args=(fault,), name=fault.kind)
            self._threads.append(thread)
            thread.start()
        time.sleep(max(0.0, options.seconds - (time.monotonic() - began)))
        for thread in self._threads:
            thread.join(timeout=HEAL_S)
            if thread.is_alive():
                self._say(f"{thread.name} is not healed after {HEAL_S:.0f} s, and is not counted")
        self._history.faults.sort(key=lambda fault: fault.began)

    def _one(self, fault: PlannedFault) -> None:
        began = time.time()
        victim, uid, trouble = "", "", ""
        try:
            done = fault_injection.inject(fault, self._ground)
            victim, uid = done.name, done.uid
            self._say(f"fault {fault.number}: {fault.kind} {victim}")
            try:
                time.sleep(fault.lasts)
            finally:
                done.heal()
        except (ClusterError, KubectlError, OSError, subprocess.SubprocessError) as error:
            trouble = f"{type(error).__name__}: {error}"
            self._say(f"fault {fault.number}: {fault.kind} {victim} failed: {trouble}")
        self._history.faults.append(
            InjectedFault(fault.kind, began, time.time(), victim=victim, uid=uid, trouble=trouble)
        )


def _come_to_rest(
    history: SoakHistory, say: Callable[[str], None], *, seconds: float, least: float
) -> None:
    """A calm, and then until all rollouts serve, and their samples' reward is at least `least`."""
    say("calm: no more faults")
    time.sleep(CALM_S)
    deadline = time.monotonic() + seconds
    while True:
        history.final = _serving(history)
        good = [r for r in history.final if r.values.get("rollout_reward", math.nan) >= least]
        if len(good) == len(history.final) == history.wanted or time.monotonic() > deadline:
            return
        time.sleep(1)


def _serving(history: SoakHistory) -> list[MetricsReading]:
    """The last readings of the rollouts that were Ready when the API was last asked."""
    if not history.readings or not history.sights:
        return []
    ready = history.sights[-1].ready
    found = (r for r in history.readings[-1] if r.worker.role == ROLLOUT)
    return [reading for reading in found if ready.get(reading.worker.uid, False)]


def _has_begun(history: SoakHistory) -> bool:
    return _step(history) >= FIRST_STEP and len(_serving(history)) == history.wanted


def _step(history: SoakHistory) -> float:
    readings = history.readings[-1] if history.readings else []
    return max((reading.values.get("step", 0.0) for reading in readings), default=0.0)


def _remove_volume(kubectl: Kubectl, name: str) -> None:
    kubectl.run("delete", "pvc", "--all", "--wait=false")
    kubectl.run("delete", "pv", name, "--wait=false")
