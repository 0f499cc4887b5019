"""The readiness gate of rollout pods: open while the weights are current."""

from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import PodFacts, ReadinessGatePatch


def gates(view: JobView) -> tuple[ReadinessGatePatch, ...]:
    """Patches for the pods whose gate is not as it should be.

    An absent condition is as good as a closed gate. Without news of the current epoch nothing
    changes, and a finished job's pods are left as they are.
    """
    group, snapshot = view.group, view.snapshot
    if view.outcome is not None or view.spec.suspend or snapshot is None or group is None:
        return ()
    if snapshot.roster_epoch != group["epoch"]:
        return ()
    patches = (_patch(view, pod) for pool in view.pools for pod in pool.pods)
    return tuple(patch for patch in patches if patch is not None)


def _patch(view: JobView, pod: PodFacts) -> ReadinessGatePatch | None:
    in_sync = view.holds_weights(pod)
    if in_sync == bool(pod.gate):
        return None
    report = view.reports.get(pod.uid)
    reason = report.state.value if report else "NotAMember"
    message = report.why if report else "not a member of the sync group"
    return ReadinessGatePatch(
        pod=pod.name, uid=pod.uid, in_sync=in_sync, reason=reason, message=message
    )
