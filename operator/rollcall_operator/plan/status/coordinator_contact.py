"""Whether the coordinator reports to the operator, and since when it does not."""

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.api.status import RLJobStatus
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import LinkFacts, LinkFailure, PodFacts
from rollcall_operator.plan.status.condition_state import SUSPENDED_TEXT, ConditionState
from rollcall_operator.plan.timestamps import from_time, to_time
from rollcall_protocol.pod_contract import MEMBERSHIP_PORT

PATIENCE_SECONDS = 5.0
"""How long a coordinator may send nothing: a connection that is opened again at once is no news.
Its heartbeats come as often. For one that starts the time begins when its pod is ready."""

_REASONS = {
    LinkFailure.UNREACHABLE: Reason.COORDINATOR_UNREACHABLE,
    LinkFailure.SILENT: Reason.COORDINATOR_SILENT,
    LinkFailure.REFUSED: Reason.COORDINATOR_REFUSES,
    LinkFailure.INCOMPATIBLE: Reason.COORDINATOR_INCOMPATIBLE,
    LinkFailure.UNTRUSTED: Reason.COORDINATOR_UNTRUSTED,
}
_CURES = {
    LinkFailure.UNREACHABLE: (
        f"check that the operator's pod can reach port {MEMBERSHIP_PORT} of the pod (its node, "
        "NetworkPolicies), and the pod's log"
    ),
    LinkFailure.SILENT: (
        "its process may hang: read the pod's log, or delete the pod to restart training from the "
        "last checkpoint"
    ),
    LinkFailure.REFUSED: (
        "it does not accept the operator's token. Rotated keys reach it within some minutes; a "
        f"trainer of another release needs a restart (annotation {labels.RESTART_TRAINER})"
    ),
    LinkFailure.INCOMPATIBLE: (
        "it is of another version than the operator: use worker images of the operator's release in"
        " spec.trainer.template"
    ),
    LinkFailure.UNTRUSTED: (
        "it does not speak TLS, or shows a certificate that the operator does not believe. With "
        "spec.tls.secretName correct that Secret and spec.tls.caBundle; else delete the Secret "
        "<job>-trainer-tls, which the operator makes again. Then restart the trainer (annotation "
        f"{labels.RESTART_TRAINER})"
    ),
}


def coordinator_connected(view: JobView) -> list[ConditionState]:
    """The condition CoordinatorConnected of a job that has not finished.

    While an operator that has just started connects for the first time, it stays as it was.
    """
    kind, pod = JobCondition.COORDINATOR_CONNECTED, labels.coordinator_pod(view.name)
    if view.spec.suspend:
        return [ConditionState(kind, False, Reason.SUSPENDED, SUSPENDED_TEXT)]
    if view.coordinator is None:
        text = f"the coordinator in pod {pod} is not running"
        return [ConditionState(kind, False, Reason.NO_COORDINATOR, text)]
    link, failure = view.observed.link, contact_failure(view)
    if failure is not None and link is not None:
        if link.failure is None and _fell_silent(view.status):
            return []
        return [ConditionState(kind, False, _REASONS[failure], _explain(pod, link, failure))]
    if view.snapshot is not None:
        text = f"the coordinator in pod {pod} reports to the operator"
        return [ConditionState(kind, True, Reason.CONNECTED, text)]
    if view.coordinator.ready and _stored_reason(view.status) in {
        Reason.CONNECTED,
        *_REASONS.values(),
    }:
        return []
    why = f": {link.detail}" if link is not None and link.detail else ""
    text = f"the coordinator in pod {pod} has not reported to the operator yet{why}"
    return [ConditionState(kind, False, Reason.STARTING, text)]


def contact_failure(view: JobView) -> LinkFailure | None:
    """Why a coordinator that should report does not; None while it does.

    A coordinator whose pod is not ready may still start, unless it fell silent before, or hangs:
    its probes fail before its connection counts as silent.
    """
    link, pod = view.observed.link, view.coordinator
    if link is None or pod is None or link.connected or view.spec.suspend or view.outcome:
        return None
    hangs = view.snapshot is not None and link.failure is LinkFailure.SILENT
    if _time_left(view, link) > 0 or not (pod.ready or hangs or _fell_silent(view.status)):
        return None
    return link.failure or LinkFailure.UNREACHABLE


def stale_since(view: JobView) -> str | None:
    """Since when what the status says about training is old; None while it is current."""
    link = view.observed.link
    return to_time(link.since) if link is not None and contact_failure(view) else None


def contact_wait(view: JobView) -> float | None:
    """Seconds until a silence is a failure; None if it is one, or nothing is silent."""
    link = view.observed.link
    if link is None or link.connected or view.outcome is not None:
        return None
    left = _time_left(view, link)
    return left if left > 0 else None


def _time_left(view: JobView, link: LinkFacts) -> float:
    """Seconds until a coordinator that sends nothing counts as silent."""
    pod, since = view.coordinator, link.since
    if pod is not None and pod.ready_since is not None and not _fell_silent(view.status):
        since = max(since, pod.ready_since)
    return since + PATIENCE_SECONDS - view.now


def silent_before(status: RLJobStatus, pod: PodFacts) -> LinkFacts | None:
    """How an earlier operator got nothing from the coordinator in `pod`.

    None if it did, or if what runs in the pod now has begun since.
    """
    failure = _stored_failure(status)
    if status.stale_since is None or pod.ready_since is None or failure is None:
        return None
    since = from_time(status.stale_since)
    return LinkFacts(False, since, failure) if pod.ready_since <= since else None


def _fell_silent(status: RLJobStatus) -> bool:
    return _stored_failure(status) is not None


def _stored_failure(status: RLJobStatus) -> LinkFailure | None:
    stored = _stored_reason(status)
    return next((failure for failure, reason in _REASONS.items() if reason == stored), None)


def _stored_reason(status: RLJobStatus) -> str:
    kind = JobCondition.COORDINATOR_CONNECTED
    return next((c.reason for c in status.conditions if c.type == kind), "")


def _explain(pod: str, link: LinkFacts, failure: LinkFailure) -> str:
    return (
        f"the coordinator in pod {pod} has not reported to the operator since {to_time(link.since)}"
        f" ({link.detail or 'no answer'}). Training may go on; the status shows it as it was then. "
        f"What to do: {_CURES[failure]}"
    )
