"""The readiness gate of rollout pods: open while the rollout serves current weights."""

from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import PodFacts, ReadinessGatePatch


def readiness_gate_patches(view: JobView) -> tuple[ReadinessGatePatch, ...]:
    """Patches for the pods whose gate is wrong; an absent condition is a closed gate.

    Without the coordinator's report on the current epoch nothing changes, and the pods of a
    finished job keep their gates.
    """
    if view.outcome is not None or view.spec.suspend or not view.snapshot_is_current:
        return ()
    patches = (_patch(view, pod) for pool in view.pools for pod in pool.pods)
    return tuple(patch for patch in patches if patch is not None)


def _patch(view: JobView, pod: PodFacts) -> ReadinessGatePatch | None:
    in_sync = view.holds_weights(pod)
    if in_sync == bool(pod.gate):
        return None
    report = view.reports.get(pod.uid)
    return ReadinessGatePatch(
        pod=pod.name,
        uid=pod.uid,
        in_sync=in_sync,
        reason=report.state.value if report else "NotAMember",
        message=report.why if report else "the pod has not joined the sync group",
    )
