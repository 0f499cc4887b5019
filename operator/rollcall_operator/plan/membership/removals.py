"""Pods that the operator itself deletes, with the events that say why."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rollcall_operator.api import labels
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.membership.nodes import (
    forced,
    preempted_rollouts,
    preempted_trainers,
    stranded_trainers,
)
from rollcall_operator.plan.membership.replacement import replaced
from rollcall_operator.plan.model import AbsentPods, EventNote, PodDeletion, PodFacts


@dataclass(frozen=True, slots=True)
class Removals:
    """What to delete and tell, what to remember, and seconds until more may be due."""

    pods: tuple[PodDeletion, ...]
    notes: tuple[EventNote, ...]
    absences: AbsentPods | None
    told: frozenset[str]
    wait: float | None


def removals(view: JobView) -> Removals:
    """What to delete now. Each pod once, for the first reason that holds."""
    found: dict[str, PodDeletion] = {}
    notes: list[EventNote] = []
    for removal, note in _of_nodes(view):
        found[removal.uid] = removal
        notes.append(note)
    replacement = replaced(view)
    for pod, why in replacement.pods:
        if pod.uid not in found:
            found[pod.uid] = PodDeletion(pod=pod.name, uid=pod.uid)
            notes.append(_note(view, "Warning", "RolloutReplaced", f"{pod.name}: {why}"))
    told = view.observed.memory.told & {pod.uid for pod in view.trainers}
    warnings = list(_trainer_warnings(view))
    notes += [note for pod, note in warnings if pod.uid not in told]
    stranded = [wait for _, wait in stranded_trainers(view) if wait > 0]
    waits = [*stranded, *([] if replacement.wait is None else [replacement.wait])]
    return Removals(
        tuple(found.values()),
        tuple(notes),
        replacement.absences,
        told | {pod.uid for pod, _ in warnings},
        min(waits, default=None),
    )


def _of_nodes(view: JobView) -> Iterator[tuple[PodDeletion, EventNote]]:
    if view.outcome is None:
        for pod, taint in preempted_rollouts(view):
            text = f"{pod.name} leaves node {pod.node}, which is about to go (taint {taint.key})"
            yield PodDeletion(pod.name, pod.uid), _note(view, "Normal", "RolloutMoved", text)
    for pod, wait in stranded_trainers(view):
        if wait == 0:
            text = (
                f"{pod.name} was on node {pod.node}, which is out of reach, and did not end in "
                "time: it is struck off, so that another takes its place"
            )
            yield forced(pod), _note(view, "Warning", "TrainerStranded", text)


def _trainer_warnings(view: JobView) -> Iterator[tuple[PodFacts, EventNote]]:
    for pod, taint in preempted_trainers(view):
        text = (
            f"node {pod.node} of {pod.name} is about to go (taint {taint.key}); the trainer stays "
            "until then, and restarts from its last checkpoint elsewhere"
        )
        yield pod, _note(view, "Warning", "TrainerPreempted", text)


def _note(
    view: JobView, kind: Literal["Normal", "Warning"], reason: str, message: str
) -> EventNote:
    metadata = view.job["metadata"]
    regarding = {
        "apiVersion": labels.API_VERSION,
        "kind": "RLJob",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return EventNote(type=kind, reason=reason, message=message, regarding=regarding)
