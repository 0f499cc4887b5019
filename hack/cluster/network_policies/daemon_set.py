"""Puts the enforcement of NetworkPolicies on each worker node of the local cluster.

Only where the pod network is ours: kind's own enforces them already. The image is the operator's,
which has Python, and the files of this package come in a ConfigMap.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.cluster import cache
from hack.cluster.examples import OPERATOR_IMAGE

if TYPE_CHECKING:
    from hack.cluster.kubectl import Kubectl

NAME = "network-policies"
NAMESPACE = "kube-system"
START_TIMEOUT_S = 90
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# The others run no pods of jobs, and do not have the image.
_WORKER_NODES = {
    "matchExpressions": [
        {"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"}
    ]
}
_PACKAGE = "hack.cluster.network_policies"
_FILES = ("firewall_rules.py", "selected_pods.py", "enforcer.py")
_CODE = "/code"


def install(kubectl: Kubectl) -> None:
    """Have every worker node enforce NetworkPolicies, and wait until it does.

    Raises:
        KubectlError: a node's pod does not start.
    """
    system = kubectl.within(NAMESPACE)
    if not system.run("get", "daemonset", "pod-network", "--ignore-not-found"):
        return
    system.apply(*manifests())
    wait = ("rollout", "status", f"daemonset/{NAME}", f"--timeout={START_TIMEOUT_S}s")
    system.run(*wait, seconds=START_TIMEOUT_S + 10)


def manifests() -> list[dict[str, Any]]:
    """Rights, code, DaemonSet. The pods have the digest of the code, so a change replaces them."""
    folder = Path(__file__).parent
    code = {name: (folder / name).read_text(encoding="utf-8") for name in _FILES}
    core = {"apiGroups": [""], "resources": ["pods", "namespaces"]}
    networking = {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"]}
    verbs = {"verbs": ["list", "watch"]}
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata()},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(), "data": code},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME},
            "rules": [core | verbs, networking | verbs],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": _metadata(),
            "spec": {
                "selector": {"matchLabels": {"app": NAME}},
                "template": _template(cache.digest(*code.values())),
            },
        },
    ]


def _metadata() -> dict[str, Any]:
    return {"name": NAME, "namespace": NAMESPACE, "labels": {"app": NAME}}


def _template(digest: str) -> dict[str, Any]:
    items = [{"key": name, "path": f"{_PACKAGE.replace('.', '/')}/{name}"} for name in _FILES]
    container = {
        "name": "enforcer",
        "image": OPERATOR_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-m", f"{_PACKAGE}.enforcer"],
        "workingDir": _CODE,
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "startupProbe": {
            "exec": {"command": ["test", "-e", "/tmp/applied"]},
            "periodSeconds": 1,
            "failureThreshold": START_TIMEOUT_S,
        },
        "securityContext": {
            "runAsUser": 0,
            "capabilities": {"add": ["NET_ADMIN", "NET_RAW", "SYS_CHROOT"]},
        },
        "volumeMounts": [
            {"name": "code", "mountPath": _CODE},
            {"name": "host", "mountPath": "/host"},
        ],
    }
    return {
        "metadata": {"labels": {"app": NAME}, "annotations": {"code": digest}},
        "spec": {
            "hostNetwork": True,
            "dnsPolicy": "Default",
            "priorityClassName": "system-node-critical",
            "serviceAccountName": NAME,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [_WORKER_NODES]}}},
            "containers": [container],
            "volumes": [
                {"name": "code", "configMap": {"name": NAME, "items": items}},
                {"name": "host", "hostPath": {"path": "/", "type": "Directory"}},
            ],
        },
    }
