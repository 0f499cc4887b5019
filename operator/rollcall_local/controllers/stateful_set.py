"""Pods of a StatefulSet, each with a number and a name that stay.

https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/
"""

import copy

from rollcall_local.controllers.changes import (
    Changes,
    Object,
    controlled_by,
    is_over,
    is_ready,
    is_terminating,
    pod_from,
    template_hash,
)

REVISION = "controller-revision-hash"
POD_INDEX = "apps.kubernetes.io/pod-index"
"""On a pod: the number in its name."""
_IN_ORDER = "OrderedReady"


def plan(stateful_set: Object, pods: list[Object]) -> Changes:
    """What brings the pods to the set's number and, but with OnDelete, to its template."""
    spec, name = stateful_set["spec"], stateful_set["metadata"]["name"]
    revision = f"{name}-{template_hash(spec['template'])}"
    there = {pod["metadata"]["name"]: pod for pod in controlled_by(stateful_set, pods)}
    names = [f"{name}-{number}" for number in range(int(spec.get("replicas", 1)))]
    missing = [each for each in names if each not in there]
    ended = [there[each] for each in names if each in there and is_over(there[each])]
    surplus = [
        there[each] for each in sorted(there, key=_number, reverse=True) if each not in names
    ]
    outdated = [] if missing else _outdated(spec, [there[each] for each in names], revision)
    if spec.get("podManagementPolicy", _IN_ORDER) == _IN_ORDER:
        waits_for = next((e for e in names if e not in there or not _serves(there[e])), None)
        missing = [each for each in missing if each == waits_for]
        ended = [pod for pod in ended if pod["metadata"]["name"] == waits_for]
        surplus = [] if waits_for else surplus[:1]
        outdated = [] if waits_for else outdated
    delete = [pod for pod in ended + surplus if not is_terminating(pod)]
    return Changes(
        create=[_pod(stateful_set, each, revision) for each in missing],
        delete=delete if ended or surplus else outdated,
        claims=[claim for each in missing for claim in _claims(stateful_set, each)],
        status=_status(stateful_set, list(there.values()), revision),
    )


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _serves(pod: Object) -> bool:
    return is_ready(pod) and not is_terminating(pod)


def _outdated(spec: Object, pods: list[Object], revision: str) -> list[Object]:
    """The last pod of another revision, once all after it are of this one, and ready."""
    if (spec.get("updateStrategy") or {}).get("type") == "OnDelete":
        return []
    for pod in reversed(pods):
        if not is_terminating(pod) and pod["metadata"]["labels"].get(REVISION) != revision:
            return [pod]
        if not _serves(pod):
            return []
    return []


def _pod(stateful_set: Object, name: str, revision: str) -> Object:
    labels = {
        REVISION: revision,
        "statefulset.kubernetes.io/pod-name": name,
        POD_INDEX: name.rpartition("-")[2],
    }
    pod = pod_from(stateful_set, name=name, labels=labels)
    subdomain = stateful_set["spec"].get("serviceName", "")
    pod["spec"] |= {"hostname": name, "subdomain": subdomain}
    volumes = [
        {"name": template, "persistentVolumeClaim": {"claimName": f"{template}-{name}"}}
        for template in _templates(stateful_set)
    ]
    claimed = {volume["name"] for volume in volumes}
    others = [v for v in pod["spec"].get("volumes") or () if v["name"] not in claimed]
    pod["spec"]["volumes"] = others + volumes
    return pod


def _claims(stateful_set: Object, pod: str) -> list[Object]:
    """They stay when the set is deleted, as in a cluster."""
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                **copy.deepcopy(template["metadata"]),
                "name": f"{name}-{pod}",
                "namespace": stateful_set["metadata"]["namespace"],
            },
            "spec": template["spec"],
        }
        for name, template in _templates(stateful_set).items()
    ]


def _templates(stateful_set: Object) -> dict[str, Object]:
    templates = stateful_set["spec"].get("volumeClaimTemplates") or ()
    return {template["metadata"]["name"]: template for template in templates}


def _status(stateful_set: Object, pods: list[Object], revision: str) -> Object:
    updated = [pod for pod in pods if pod["metadata"]["labels"].get(REVISION) == revision]
    return {
        "observedGeneration": stateful_set["metadata"]["generation"],
        "replicas": len(pods),
        "readyReplicas": sum(map(is_ready, pods)),
        "updatedReplicas": len(updated),
        "updateRevision": revision,
        "currentRevision": revision,
    }
