"""Why a StatefulSet or Deployment cannot create its pods: quotas, limits, admission."""

import re
from collections.abc import Mapping

from rollcall_operator.api.conditions import Reason
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.model import Manifest, ObservedJob
from rollcall_operator.plan.status.pod_problems import PodProblem

_LONGEST = 600

# Text in the API server's message, and what to do about it; the first that fits counts.
_CURES = {
    r"failed quota: .*must specify": (
        "set resources.requests and resources.limits of every container, as the ResourceQuota of "
        "the namespace asks"
    ),
    r"exceeded quota": (
        "raise the ResourceQuota of the namespace, or ask for fewer replicas or smaller resources"
    ),
    r"(maximum|minimum|max limit to request ratio) .*(usage|ratio|per )": (
        "change the containers' resources so that they fit the LimitRange of the namespace"
    ),
    r"violates PodSecurity": (
        "correct the securityContext, or use a namespace with a lower Pod Security level"
    ),
    r"ValidatingAdmissionPolicy|admission webhook": (
        "correct the template as the policy says, or ask who set the policy"
    ),
    r"serviceaccount .*not found": (
        "create the ServiceAccount, or correct spec.serviceAccountName of the template"
    ),
    r"no PriorityClass": (
        "create the PriorityClass, or correct spec.priorityClassName of the template"
    ),
}

# Each attempt names another pod: the condition's message stays the same without its name.
_POD_NAME = re.compile(r'.*?\bpods? "[^"]*" is forbidden: ')
_STATEFUL_SET = re.compile(r"^create Pod \S+ in StatefulSet \S+ failed error: ")


def creation_failures(observed: ObservedJob) -> dict[str, str]:
    """Why children cannot create their pods: messages by key, such as "Deployment/reverse-cpu".

    A Deployment says so itself; of StatefulSets only events do.
    """
    said = {apply_needed.key(child): _replica_failure(child) for child in observed.children}
    return {**observed.creation_failures, **{key: why for key, why in said.items() if why}}


def refused_pods(failures: Mapping[str, str], *, child: str, path: str) -> PodProblem | None:
    """Why `child` ("Deployment/reverse-cpu") gets no pods; None if `failures` does not name it.

    `path` is the pod template's in the spec.
    """
    why = failures.get(child, "")
    if not why:
        return None
    text = _POD_NAME.sub("", _STATEFUL_SET.sub("", " ".join(why.split())), count=1)[:_LONGEST]
    return PodProblem(
        Reason.PODS_REFUSED,
        f"{path}: the API server refuses pods of {child}: {text}; {_cure(text)}",
    )


def _replica_failure(live: Manifest) -> str:
    for condition in (live.get("status") or {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return str(condition.get("message", "")) or str(condition.get("reason", ""))
    return ""


def _cure(text: str) -> str:
    for pattern, cure in _CURES.items():
        if re.search(pattern, text, re.IGNORECASE):
            return cure
    return "correct the template, or what refuses it"
