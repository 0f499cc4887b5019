"""The readiness gate of rollout pods: open while the rollout serves current weights."""

from collections.abc import Iterable

from rollcall_operator.plan.job_view import CoordinatorReport
from rollcall_operator.plan.model import PodFacts, ReadinessGatePatch


def readiness_gate_patches(
    rollouts: Iterable[PodFacts], report: CoordinatorReport
) -> tuple[ReadinessGatePatch, ...]:
    """Patches for the pods whose gate is wrong; an absent condition is a closed gate."""
    patches = (_patch(pod, report) for pod in rollouts)
    return tuple(patch for patch in patches if patch is not None)


def _patch(pod: PodFacts, report: CoordinatorReport) -> ReadinessGatePatch | None:
    in_sync = report.holds_weights(pod)
    if in_sync == bool(pod.gate):
        return None
    member = report.of(pod)
    return ReadinessGatePatch(
        pod=pod.name,
        uid=pod.uid,
        in_sync=in_sync,
        reason=member.state.value if member else "NotAMember",
        message=member.why if member else "the pod has not joined the sync group",
    )
