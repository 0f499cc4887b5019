"""Pods that the operator itself deletes, with the events that give the reasons."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import EventReason
from rollcall_operator.plan.failure import describe_exit
from rollcall_operator.plan.job_view import JobView, pods_of_role
from rollcall_operator.plan.membership.nodes import (
    pods_on_terminating_nodes,
    trainers_stuck_on_lost_nodes,
)
from rollcall_operator.plan.membership.replacement import decide_replacements
from rollcall_operator.plan.model import (
    AbsentPods,
    Manifest,
    PlannedEvent,
    PodDeletion,
    PodFacts,
    Taint,
)
from rollcall_operator.plan.trainer_restart import (
    after_restart,
    live_stateful_set,
    pods_in_needless_back_off,
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
    job, observed = view.job, view.observed
    trainers = tuple(pods_of_role(observed, labels.TRAINER))
    stuck = list(trainers_stuck_on_lost_nodes(trainers, observed.nodes, now=view.now))
    rollouts = () if view.outcome else tuple(pod for pool in view.pools for pod in pool.pods)
    reasons = [
        *_moved_rollouts(job, pods_on_terminating_nodes(rollouts, observed.nodes)),
        *_lost_trainers(job, (pod for pod, wait in stuck if wait == 0)),
    ]
    found = {deletion.uid: deletion for deletion, _ in reasons}
    events = [event for _, event in reasons]
    live = live_stateful_set(job, observed.children)
    restarted = [] if view.stopped else pods_to_restart(job, live, view.trainers)
    earlier = pods_of_earlier_job(view.uid, live, observed.pods)
    still = () if view.stopped else view.trainers
    renewed = pods_in_needless_back_off(view.spec, view.restarts, still)
    for pod in (*restarted, *renewed, *earlier):
        found.setdefault(pod.uid, PodDeletion.of(pod))
    events += [_restart_event(job, restarted)] if restarted else []
    events += [_renewal_event(job, renewed)] if renewed else []
    events += [_adoption_event(job, earlier)] if earlier else []
    replacement = decide_replacements(view)
    for pod, why in replacement.pods:
        if pod.uid not in found:
            found[pod.uid] = PodDeletion.of(pod)
            text = f"rollout {pod.name} is deleted and replaced: {why}"
            events.append(PlannedEvent.about(job, "Warning", EventReason.ROLLOUT_REPLACED, text))
    warned = observed.memory.warned_trainers & {pod.uid for pod in view.trainers}
    warnings = list(
        _trainer_warnings(job, pods_on_terminating_nodes(view.trainers, observed.nodes))
    )
    events += [event for pod, event in warnings if pod.uid not in warned]
    waits = [*(wait for _, wait in stuck if wait > 0), replacement.wait]
    return RemovalDecision(
        tuple(found.values()),
        tuple(events),
        replacement.absences,
        warned | {pod.uid for pod, _ in warnings},
        min((wait for wait in waits if wait is not None), default=None),
    )


def _restart_event(job: Manifest, pods: list[PodFacts]) -> PlannedEvent:
    text = (
        f"trainer pods are deleted as requested by annotation {labels.RESTART_TRAINER} or kubectl "
        f"rollout restart: {len(pods)}, the first is {pods[0].name}; {after_restart(job)}"
    )
    return PlannedEvent.about(job, "Normal", EventReason.TRAINER_RESTARTED, text)


def _renewal_event(job: Manifest, pods: list[PodFacts]) -> PlannedEvent:
    first = pods[0]
    text = (
        f"trainer pods are deleted and replaced, since a new pod starts at once and the kubelet "
        f"would wait: {len(pods)}, the first is {first.name}, whose container ended with "
        f"{describe_exit(first)}; {after_restart(job)}"
    )
    return PlannedEvent.about(job, "Normal", EventReason.TRAINER_RESTARTED, text)


def _adoption_event(job: Manifest, pods: list[PodFacts]) -> PlannedEvent:
    text = (
        "the job has adopted the objects of an earlier job of its name; trainer pods with that "
        f"job's settings are deleted and replaced: {len(pods)}, the first is {pods[0].name}"
    )
    return PlannedEvent.about(job, "Normal", EventReason.CHILDREN_ADOPTED, text)


def _moved_rollouts(
    job: Manifest, rollouts: Iterable[tuple[PodFacts, Taint]]
) -> Iterator[tuple[PodDeletion, PlannedEvent]]:
    for pod, taint in rollouts:
        text = (
            f"rollout {pod.name} is deleted so that it drains and is replaced elsewhere: node "
            f"{pod.node} will terminate (taint {taint.key})"
        )
        event = PlannedEvent.about(job, "Normal", EventReason.ROLLOUT_MOVED, text)
        yield PodDeletion.of(pod), event


def _lost_trainers(
    job: Manifest, trainers: Iterable[PodFacts]
) -> Iterator[tuple[PodDeletion, PlannedEvent]]:
    for pod in trainers:
        text = (
            f"trainer {pod.name} was force-deleted so that the StatefulSet can replace it: "
            f"node {pod.node} does not respond, and the pod's grace period has passed"
        )
        event = PlannedEvent.about(job, "Warning", EventReason.TRAINER_FORCE_DELETED, text)
        yield PodDeletion.of(pod, force=True), event


def _trainer_warnings(
    job: Manifest, trainers: Iterable[tuple[PodFacts, Taint]]
) -> Iterator[tuple[PodFacts, PlannedEvent]]:
    restarts = "restarts from its last checkpoint on another node"
    if job["spec"]["trainer"].get("kind") == "External":
        restarts = f"restarts on another node; {after_restart(job)}"
    for pod, taint in trainers:
        text = (
            f"node {pod.node} of trainer {pod.name} will terminate (taint {taint.key}); the "
            f"trainer runs until then, and {restarts}"
        )
        yield pod, PlannedEvent.about(job, "Warning", EventReason.TRAINER_NODE_TERMINATING, text)
