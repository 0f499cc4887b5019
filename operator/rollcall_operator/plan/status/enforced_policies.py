"""Whether the cluster's network enforces the job's NetworkPolicies."""

from collections.abc import Iterable

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.api.status import Condition
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.model import NETWORK_POLICY, ObservedJob
from rollcall_operator.plan.status.condition_state import ConditionState
from rollcall_protocol.pod_contract import COMPLETIONS_PORT


def can_be_tried(observed: ObservedJob) -> bool:
    """Whether a policy should keep the operator from a port at which the coordinator listens.

    The coordinator of a job without an algorithm listens at no such port: there are no completions.
    """
    policy = f"{NETWORK_POLICY}/{labels.trainer_name(observed.name)}"
    there = any(apply_needed.key(child) == policy for child in observed.children)
    return there and observed.job is not None and "algorithm" in observed.job["spec"]


def network_policies_enforced(
    before: Iterable[Condition], *, job: str, enabled: bool, enforced: bool | None
) -> list[ConditionState]:
    """The condition NetworkPoliciesEnforced; it stays as it was, or absent, while nothing is known.

    It is never a reason to stop a job. `before`: the conditions in status. `job`: its name.
    `enabled`: `spec.networkPolicy.enabled`. `enforced`: see `ObservedJob`.
    """
    kind = JobCondition.NETWORK_POLICIES_ENFORCED
    if not enabled:
        if all(condition.type != kind for condition in before):
            return []
        text = "spec.networkPolicy.enabled is false: the job has no NetworkPolicies"
        return [ConditionState(kind, None, Reason.NETWORK_POLICIES_DISABLED, text)]
    pod = labels.coordinator_pod(job)
    if enforced is None:
        return []
    if enforced:
        text = f"the network keeps the operator from port {COMPLETIONS_PORT} of pod {pod}"
        return [ConditionState(kind, True, Reason.ENFORCED, text)]
    text = (
        f"the operator could connect to port {COMPLETIONS_PORT} of pod {pod}, which the job's "
        "NetworkPolicies allow to its rollouts alone: other pods of the cluster may reach the "
        "job's pods as well. Training goes on. What to do: install a network plugin that enforces "
        "NetworkPolicies (such as Calico or Cilium), look for another NetworkPolicy that selects "
        "the pod and allows this, or set spec.networkPolicy.enabled: false"
    )
    return [ConditionState(kind, False, Reason.NOT_ENFORCED, text)]
