"""Whether the coordinator reports to the operator, and since when it does not."""

from dataclasses import dataclass

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.api.status import RLJobStatus
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import LinkFacts, LinkFailure, PodFacts
from rollcall_operator.plan.status.condition_state import ConditionState
from rollcall_operator.plan.timestamps import from_time, to_time
from rollcall_protocol.pod_contract import MEMBERSHIP_PORT

SILENCE_SECONDS = 5.0
"""How long a coordinator may send nothing: a connection that is opened again at once is no news.
Its heartbeats come as often. For one that starts the time begins when its pod is ready."""

FIRST_REPORT_SECONDS = 30.0
"""The same for one that has never reported: on a busy machine its first answer takes longer."""

_REASONS = {
    LinkFailure.UNREACHABLE: Reason.COORDINATOR_UNREACHABLE,
    LinkFailure.SILENT: Reason.COORDINATOR_SILENT,
    LinkFailure.REFUSED: Reason.COORDINATOR_REFUSES,
    LinkFailure.INCOMPATIBLE: Reason.COORDINATOR_INCOMPATIBLE,
    LinkFailure.UNTRUSTED: Reason.COORDINATOR_UNTRUSTED,
    LinkFailure.EXCESSIVE: Reason.COORDINATOR_SENDS_TOO_MUCH,
}
_NO_ANSWER = frozenset({None, LinkFailure.UNREACHABLE, LinkFailure.SILENT})
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
    LinkFailure.EXCESSIVE: (
        "no honest coordinator sends so much: use worker images of the operator's release in "
        "spec.trainer.template. The operator has closed the stream, so that other jobs do not wait,"
        " and tries again after 10 minutes at most"
    ),
}


@dataclass(frozen=True, slots=True)
class CoordinatorContact:
    """What shows whether the coordinator of a job that goes on reports to the operator.

    `pod_name` is its pod's, also while there is none. `link` is the operator's connection to it.
    `reported`: the operator has a report of this very pod. `stored_reason` is that of the condition
    CoordinatorConnected in status, empty if it is absent. `now` is Unix seconds.
    """

    pod_name: str
    pod: PodFacts | None
    link: LinkFacts | None
    reported: bool
    stored_reason: str
    now: float

    @property
    def fell_silent(self) -> bool:
        """Whether status says already that the coordinator does not report."""
        return self.stored_reason in _REASONS.values()

    @property
    def seconds_left(self) -> float:
        """Until a coordinator that sends nothing counts as silent; at most 0 if it does."""
        if self.link is None:
            raise ValueError("there is no connection that could be silent")
        since = self.link.since
        if self.pod is not None and self.pod.ready_since is not None and not self.fell_silent:
            since = max(since, self.pod.ready_since)
        return since + self._bound - self.now

    @property
    def _bound(self) -> float:
        known = self.reported or self.fell_silent or self.stored_reason == Reason.CONNECTED
        answers = self.link is not None and self.link.failure not in _NO_ANSWER
        return SILENCE_SECONDS if known or answers else FIRST_REPORT_SECONDS

    @property
    def silent(self) -> bool:
        """Whether it has sent nothing for as long as a coordinator may."""
        return self.link is not None and not self.link.connected and self.seconds_left <= 0

    @property
    def failure(self) -> LinkFailure | None:
        """Why a coordinator that should report does not; None while it does.

        A coordinator whose pod is not ready may still start, unless it fell silent before, hangs
        (its probes fail before its connection counts as silent) or was cut off.
        """
        link, pod = self.link, self.pod
        if link is None or pod is None or not self.silent:
            return None
        hangs = self.reported and link.failure is LinkFailure.SILENT
        cut_off = link.failure is LinkFailure.EXCESSIVE
        if not (pod.ready or hangs or cut_off or self.fell_silent):
            return None
        return link.failure or LinkFailure.UNREACHABLE

    @property
    def stale_since(self) -> str | None:
        """Since when it does not report; None while it does."""
        return to_time(self.link.since) if self.link and self.failure else None

    @property
    def wait(self) -> float | None:
        """Seconds until a silence is a failure; None if it is one, or nothing is silent."""
        if self.link is None or self.link.connected:
            return None
        return self.seconds_left if self.seconds_left > 0 else None


def coordinator_contact(view: JobView) -> CoordinatorContact:
    """The operator's contact with the job's coordinator."""
    return CoordinatorContact(
        pod_name=labels.coordinator_pod(view.name),
        pod=view.coordinator,
        link=view.observed.link,
        reported=view.report.snapshot is not None,
        stored_reason=_stored_reason(view.status),
        now=view.now,
    )


def coordinator_connected(contact: CoordinatorContact) -> list[ConditionState]:
    """The condition CoordinatorConnected of a job that goes on.

    While an operator that has just started connects for the first time, it stays as it was.
    """
    kind, pod = JobCondition.COORDINATOR_CONNECTED, contact.pod_name
    if contact.pod is None:
        text = f"the coordinator in pod {pod} is not running"
        return [ConditionState(kind, False, Reason.NO_COORDINATOR, text)]
    link, failure = contact.link, contact.failure
    if failure is not None and link is not None:
        if link.failure is None and contact.fell_silent:
            return []
        return [ConditionState(kind, False, _REASONS[failure], _explain(pod, link, failure))]
    if contact.reported and not contact.silent:
        text = f"the coordinator in pod {pod} reports to the operator"
        return [ConditionState(kind, True, Reason.CONNECTED, text)]
    known = contact.fell_silent or contact.stored_reason == Reason.CONNECTED
    if contact.pod.ready and known:
        return []
    why = f": {link.detail}" if link is not None and link.detail else ""
    since = "since it started again" if contact.reported else "yet"
    text = f"the coordinator in pod {pod} has not reported to the operator {since}{why}"
    return [ConditionState(kind, False, Reason.STARTING, text)]


def silent_before(status: RLJobStatus, pod: PodFacts) -> LinkFacts | None:
    """How an earlier operator got nothing from the coordinator in `pod`.

    None if it did, or if what runs in the pod now has begun since.
    """
    failure = _stored_failure(status)
    if status.stale_since is None or pod.ready_since is None or failure is None:
        return None
    since = from_time(status.stale_since)
    return LinkFacts(False, since, failure) if pod.ready_since <= since else None


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
