"""Events: what a person would want to be told, once, when the status that says so is written."""

from collections.abc import Iterator, Mapping
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import PROBLEM_REASONS, JobPhase
from rollcall_operator.plan.model import EventNote, Manifest
from rollcall_operator.plan.status.sessions import news

_LONGEST = 1000


def job_events(job: Manifest, new: Mapping[str, Any]) -> tuple[EventNote, ...]:
    """What changed between the job's status and the one that is about to be written."""
    old: Mapping[str, Any] = job.get("status") or {}
    rebuilt = [_note(job, "Normal", "SessionRebuilt", text) for text in news(old, new)]
    return (*_troubles(job, old, new), *_epochs(job, old, new), *rebuilt, *_phase(job, old, new))


def pool_events(pool: Manifest, new: Mapping[str, Any]) -> tuple[EventNote, ...]:
    """Troubles of a pool."""
    return tuple(_troubles(pool, pool.get("status") or {}, new))


def _note(about: Manifest, kind: str, reason: str, message: str) -> EventNote:
    metadata = about["metadata"]
    regarding = {
        "apiVersion": labels.API_VERSION,
        "kind": about["kind"],
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    severity = "Warning" if kind == "Warning" else "Normal"
    return EventNote(severity, reason, message[:_LONGEST], regarding)  # type: ignore[arg-type]


def _troubles(
    about: Manifest, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[EventNote]:
    """Conditions with a reason to worry that they did not have before."""
    before = {(c["type"], c["reason"]) for c in old.get("conditions") or ()}
    for condition in new.get("conditions") or ():
        reason = condition["reason"]
        if reason not in PROBLEM_REASONS or (condition["type"], reason) in before:
            continue
        if condition["type"] not in {"Failed", "Running"}:  # told by the phase, or told twice
            yield _note(about, "Warning", reason, condition["message"])


def _epochs(job: Manifest, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[EventNote]:
    default = next(
        iter(new.get("syncGroups") or ()), None
    )  # the others have no epochs of their own
    if default is not None and new.get("epoch") != old.get("epoch"):
        record = default["history"][-1]
        text = f"epoch {record['epoch']} with {record['members']} members: {record['cause']}"
        yield _note(job, "Normal", "NewEpoch", f"{text}; {record['message']}")


def _phase(job: Manifest, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[EventNote]:
    now = new.get("phase")
    if now == old.get("phase") or now is None:
        return
    if now in {JobPhase.SUCCEEDED, JobPhase.FAILED}:
        ended = next(c for c in new["conditions"] if c["type"] == now)
        kind = "Warning" if now == JobPhase.FAILED else "Normal"
        yield _note(job, kind, ended["reason"], f"{now}: {ended['message']}")
    elif now == JobPhase.RESTARTING:
        yield _note(job, "Warning", str(now), "the trainer is not ready")
    elif now in {JobPhase.RUNNING, JobPhase.SUSPENDED}:
        yield _note(job, "Normal", str(now), f"phase was {old.get('phase', 'none')}")
