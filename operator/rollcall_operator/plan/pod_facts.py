"""Raw pods reduced to the few facts that planning needs."""

from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.plan.model import Manifest, PodFacts, Toleration
from rollcall_operator.plan.termination_message import summarize
from rollcall_operator.plan.timestamps import from_time
from rollcall_protocol.pod_contract import READINESS_GATE

_OOM_KILLED = "OOMKilled"


def pod_facts(pod: Manifest) -> PodFacts:
    """Read a pod as the API server returns it; a pod without status has not been scheduled."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    worker = worker_container(pod)
    statuses = {s["name"]: s for s in status.get("containerStatuses") or ()}
    inits = status.get("initContainerStatuses") or ()
    stuck = next((s for s in inits if _init_stuck(s)), None)
    container = stuck or statuses.get(worker, {})
    ended = _last_end(container)
    waiting = (container.get("state") or {}).get("waiting") or {}
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = scheduled.get("message", "") if scheduled.get("status") == "False" else ""
    gate = conditions.get(READINESS_GATE)
    running = (statuses.get(worker, {}).get("state") or {}).get("running")
    ready = conditions.get("Ready", {})
    is_ready = ready.get("status") == "True"
    own_labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return PodFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        role=own_labels.get(labels.ROLE, ""),
        job_uid=annotations.get(labels.JOB_UID, ""),
        pool=own_labels.get(labels.POOL, ""),
        ip=status.get("podIP", ""),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        running=running is not None,
        ready=is_ready,
        terminating="deletionTimestamp" in metadata,
        restarts=container.get("restartCount", 0),
        exit_code=ended.get("exitCode"),
        exit_message=_exit_message(ended),
        oom_killed=ended.get("reason") == _OOM_KILLED,
        ran_for=_ran_for(ended),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        unschedulable=unschedulable,
        container=stuck["name"] if stuck else worker,
        init=stuck is not None,
        gate=None if gate is None else gate["status"] == "True",
        almost_ready=_almost_ready(spec, conditions),
        up=bool(statuses.get(worker, {}).get("started")),
        created=_time(metadata.get("creationTimestamp")) or 0.0,
        started=_time((running or {}).get("startedAt")),
        ready_since=_time(ready.get("lastTransitionTime")) if is_ready else None,
        gate_since=_time((gate or {}).get("lastTransitionTime")),
        gate_reason=(gate or {}).get("reason", ""),
        leaves_by=_time(metadata.get("deletionTimestamp")),
        deletion_cost=annotations.get(labels.DELETION_COST),
        revision=own_labels.get("controller-revision-hash", ""),
        restart_requests={
            name: annotations[name] for name in labels.RESTART_REQUESTS if name in annotations
        },
        tolerations=tuple(_toleration(item) for item in spec.get("tolerations") or ()),
        mounting_since=_mounting_since(pod, conditions),
    )


def _time(text: str | None) -> float | None:
    return from_time(text) if text else None


def _ran_for(ended: dict[str, Any]) -> float | None:
    began, end = _time(ended.get("startedAt")), _time(ended.get("finishedAt"))
    return None if began is None or end is None else end - began


def _mounting_since(pod: Manifest, conditions: dict[str, dict[str, Any]]) -> float | None:
    status = pod.get("status") or {}
    if status.get("phase") != "Pending" or not pod["spec"].get("nodeName"):
        return None
    # Its sandbox comes after the volumes. Kubernetes before 1.29 has no such condition.
    started = conditions.get("PodReadyToStartContainers")
    if started["status"] == "True" if started else status.get("podIP"):
        return None
    scheduled = conditions.get("PodScheduled", {}).get("lastTransitionTime")
    return _time(scheduled or pod["metadata"].get("creationTimestamp"))


def _toleration(item: dict[str, Any]) -> Toleration:
    return Toleration(
        key=item.get("key", ""),
        operator=item.get("operator", "Equal"),
        value=item.get("value", ""),
        effect=item.get("effect", ""),
    )


def _almost_ready(spec: Manifest, conditions: dict[str, dict[str, Any]]) -> bool:
    gates = [gate["conditionType"] for gate in spec.get("readinessGates") or ()]
    needed = ["ContainersReady", *(gate for gate in gates if gate != READINESS_GATE)]
    met = all(conditions.get(kind, {}).get("status") == "True" for kind in needed)
    return met and conditions.get("Ready", {}).get("status") != "True"


def worker_container(pod: Manifest) -> str:
    """The template names it in an annotation, as sidecars may have been injected since."""
    named = (pod["metadata"].get("annotations") or {}).get(labels.WORKER_CONTAINER)
    containers = (pod.get("spec") or {}).get("containers") or ()
    return named or (containers[0]["name"] if containers else "")


def _init_stuck(status: dict[str, Any]) -> bool:
    state = status.get("state") or {}
    waiting = (state.get("waiting") or {}).get("reason", "PodInitializing")
    failed = (state.get("terminated") or {}).get("exitCode", 0) != 0
    return failed or waiting not in {"PodInitializing", "ContainerCreating"}


def _exit_message(ended: dict[str, Any]) -> str:
    """One line on how a container ended; the kernel's out-of-memory kill is named first."""
    summary, reason = summarize(ended.get("message") or ""), ended.get("reason") or ""
    if reason == _OOM_KILLED:
        more = f": {summary}" if summary else ""
        return f"{_OOM_KILLED}, it used more memory than its limit{more}"
    return summary or reason


def _last_end(container: dict[str, Any]) -> dict[str, Any]:
    for state in ("state", "lastState"):
        terminated = (container.get(state) or {}).get("terminated")
        if terminated:
            return dict(terminated)
    return {}
