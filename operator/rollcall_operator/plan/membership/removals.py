"""Pods that the operator itself deletes, with the events that give the reasons."""

from collections.abc import Iterator
from dataclasses import dataclass

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import EventReason
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.membership.nodes import (
    force_deletion,
    rollouts_on_terminating_nodes,
    trainers_on_terminating_nodes,
    trainers_stuck_on_lost_nodes,
)
from rollcall_operator.plan.membership.replacement import decide_replacements
from rollcall_operator.plan.model import AbsentPods, PlannedEvent, PodDeletion, PodFacts
from rollcall_operator.plan.trainer_restart import (
    after_restart,
    pods_of_earlier_job,
    pods_to_restart,
)


@dataclass(frozen=True, slots=True)
class RemovalDecision:
    """Pods to delete, events, what to remember, and seconds until another may be due."""

    pods: tuple[PodDeletion, ...]
    events: tuple[PlannedEvent, ...]
    absences: AbsentPods | None
    warned_trainers: frozenset[str]
    wait: float | None


def decide_removals(view: JobView) -> RemovalDecision:
    """Pods to delete now: each once, for the first reason that holds."""
    found: dict[str, PodDeletion] = {}
    events: list[PlannedEvent] = []
    for deletion, event in _because_of_nodes(view):
        found[deletion.uid] = deletion
        events.append(event)
    restarted, earlier = pods_to_restart(view), pods_of_earlier_job(view)
    for pod in (*restarted, *earlier):
        found.setdefault(pod.uid, PodDeletion.of(pod))
    events += [_restart_event(view, restarted)] if restarted else []
    events += [_adoption_event(view, earlier)] if earlier else []
    replacement = decide_replacements(view)
    for pod, why in replacement.pods:
        if pod.uid not in found:
            found[pod.uid] = PodDeletion.of(pod)
            text = f"rollout {pod.name} is deleted and replaced: {why}"
            events.append(
                PlannedEvent.about(view.job, "Warning", EventReason.ROLLOUT_REPLACED, text)
            )
    warned = view.observed.memory.warned_trainers & {pod.uid for pod in view.trainers}
    warnings = list(_trainer_warnings(view))
    events += [event for pod, event in warnings if pod.uid not in warned]
    stuck = [wait for _, wait in trainers_stuck_on_lost_nodes(view) if wait > 0]
    waits = [*stuck, *([] if replacement.wait is None else [replacement.wait])]
    return RemovalDecision(
        tuple(found.values()),
        tuple(events),
        replacement.absences,
        warned | {pod.uid for pod, _ in warnings},
        min(waits, default=None),
    )


def _restart_event(view: JobView, pods: list[PodFacts]) -> PlannedEvent:
    text = (
        f"trainer pods are deleted as requested by annotation {labels.RESTART_TRAINER} or kubectl "
        f"rollout restart: {len(pods)}, the first is {pods[0].name}; {after_restart(view.job)}"
    )
    return PlannedEvent.about(view.job, "Normal", EventReason.TRAINER_RESTARTED, text)


def _adoption_event(view: JobView, pods: list[PodFacts]) -> PlannedEvent:
    text = (
        "the job has adopted the objects of an earlier job of its name; trainer pods with that "
        f"job's settings are deleted and replaced: {len(pods)}, the first is {pods[0].name}"
    )
    return PlannedEvent.about(view.job, "Normal", EventReason.CHILDREN_ADOPTED, text)


def _because_of_nodes(view: JobView) -> Iterator[tuple[PodDeletion, PlannedEvent]]:
    if view.outcome is None:
        for pod, taint in rollouts_on_terminating_nodes(view):
            text = (
                f"rollout {pod.name} is deleted so that it drains and is replaced elsewhere: node "
                f"{pod.node} will terminate (taint {taint.key})"
            )
            event = PlannedEvent.about(view.job, "Normal", EventReason.ROLLOUT_MOVED, text)
            yield PodDeletion.of(pod), event
    for pod, wait in trainers_stuck_on_lost_nodes(view):
        if wait == 0:
            text = (
                f"trainer {pod.name} was force-deleted so that the StatefulSet can replace it: "
                f"node {pod.node} does not respond, and the pod's grace period has passed"
            )
            event = PlannedEvent.about(view.job, "Warning", EventReason.TRAINER_FORCE_DELETED, text)
            yield force_deletion(pod), event


def _trainer_warnings(view: JobView) -> Iterator[tuple[PodFacts, PlannedEvent]]:
    for pod, taint in trainers_on_terminating_nodes(view):
        text = (
            f"node {pod.node} of trainer {pod.name} will terminate (taint {taint.key}); the "
            "trainer runs until then, and restarts from its last checkpoint on another node"
        )
        yield (
            pod,
            PlannedEvent.about(view.job, "Warning", EventReason.TRAINER_NODE_TERMINATING, text),
        )
