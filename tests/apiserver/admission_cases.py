"""Pod templates that the chart's admission policy refuses or allows, and what Pod Security says."""

from dataclasses import dataclass
from typing import Any

SECRET, ACCOUNT, REGISTRY = "allowed-secret", "allowed-account", "allowed-registry"
"""What the values of the policy allow in the tests."""
APPARMOR = "container.apparmor.security.beta.kubernetes.io/trainer"


@dataclass(frozen=True, slots=True)
class TemplateCase:
    """Additions to a pod template whose container is called trainer.

    Attributes:
        name: what is added.
        container: fields of the container.
        pod: fields of the pod's spec.
        annotations: of the pod.
        refused: the field that the message names, below the template; empty if it is allowed.
        restricted: whether Pod Security's level `restricted` refuses the completed pod, too.
    """

    name: str
    container: dict[str, Any] | None = None
    pod: dict[str, Any] | None = None
    annotations: dict[str, str] | None = None
    refused: str = ""
    restricted: bool = False

    def __str__(self) -> str:
        return self.name


def _context(name: str, context: dict[str, Any], field: str = "") -> TemplateCase:
    """A container's security context; refused if it names a field."""
    where = f"spec.containers[trainer].securityContext.{field}" if field else ""
    return TemplateCase(
        name, container={"securityContext": context}, refused=where, restricted=bool(field)
    )


def _pod_context(name: str, context: dict[str, Any], field: str = "") -> TemplateCase:
    where = f"spec.securityContext.{field}" if field else ""
    return TemplateCase(
        name, pod={"securityContext": context}, refused=where, restricted=bool(field)
    )


def _pod(name: str, spec: dict[str, Any], refused: str, *, restricted: bool = True) -> TemplateCase:
    return TemplateCase(name, pod=spec, refused=refused, restricted=restricted)


def _container(
    name: str, container: dict[str, Any], field: str = "", *, restricted: bool = False
) -> TemplateCase:
    where = f"spec.containers[trainer].{field}" if field else ""
    return TemplateCase(name, container=container, refused=where, restricted=restricted)


def _volume(
    name: str, source: dict[str, Any], refused: str = "", *, restricted: bool = False
) -> TemplateCase:
    spec = {"volumes": [{"name": "v", **source}]}
    return TemplateCase(name, pod=spec, refused=refused, restricted=restricted)


def _secret_env(secret: str) -> dict[str, Any]:
    key = {"secretKeyRef": {"name": secret, "key": "k"}}
    return {"env": [{"name": "PLAIN", "value": "1"}, {"name": "KEY", "valueFrom": key}]}


_PROBE = {"httpGet": {"port": 80, "host": "10.0.0.1"}}
_TOKEN = "spec.volumes.projected.sources.serviceAccountToken.audience"

POD_SECURITY = (
    _context("privileged", {"privileged": True, "allowPrivilegeEscalation": True}, "privileged"),
    _context("escalation", {"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation"),
    _context("escalation is off", {"allowPrivilegeEscalation": False, "privileged": False}),
    _context("capabilities kept", {"capabilities": {"drop": ["KILL"]}}, "capabilities.drop"),
    _context("no capability named", {"capabilities": {}}, "capabilities.drop"),
    _context(
        "capability added",
        {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
        "capabilities.add",
    ),
    _context("low ports", {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}),
    _context("may be root", {"runAsNonRoot": False}, "runAsNonRoot"),
    _context("is root", {"runAsUser": 0}, "runAsUser"),
    _context("another user", {"runAsUser": 1000, "runAsNonRoot": True}),
    _context("no seccomp", {"seccompProfile": {"type": "Unconfined"}}, "seccompProfile.type"),
    _context("own seccomp", {"seccompProfile": {"type": "Localhost", "localhostProfile": "mine"}}),
    _context("no AppArmor", {"appArmorProfile": {"type": "Unconfined"}}, "appArmorProfile.type"),
    _context("SELinux type", {"seLinuxOptions": {"type": "spc_t"}}, "seLinuxOptions"),
    _context("SELinux role", {"seLinuxOptions": {"role": "sysadm_r"}}, "seLinuxOptions"),
    _context("SELinux level", {"seLinuxOptions": {"type": "container_t", "level": "s0"}}),
    _pod_context("pod may be root", {"runAsNonRoot": False}, "runAsNonRoot"),
    _pod_context("pod is root", {"runAsUser": 0}, "runAsUser"),
    _pod_context("pod has a user", {"runAsUser": 1000, "fsGroup": 1000, "runAsNonRoot": True}),
    _pod_context(
        "pod without seccomp", {"seccompProfile": {"type": "Unconfined"}}, "seccompProfile.type"
    ),
    _pod_context("pod with seccomp", {"seccompProfile": {"type": "RuntimeDefault"}}),
    _pod_context(
        "pod without AppArmor", {"appArmorProfile": {"type": "Unconfined"}}, "appArmorProfile.type"
    ),
    _pod_context(
        "pod of an SELinux user", {"seLinuxOptions": {"user": "system_u"}}, "seLinuxOptions"
    ),
    _pod_context(
        "unsafe sysctl", {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}, "sysctls"
    ),
    _pod_context("safe sysctl", {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}),
    TemplateCase(
        "no AppArmor by annotation",
        annotations={APPARMOR: "unconfined"},
        refused="metadata.annotations[container.apparmor.security.beta.kubernetes.io/...]",
        restricted=True,
    ),
    TemplateCase("annotations", annotations={APPARMOR: "runtime/default", "mine": "unconfined"}),
    _pod("host network", {"hostNetwork": True}, "spec.hostNetwork"),
    _pod("host processes", {"hostPID": True}, "spec.hostPID"),
    _pod("host IPC", {"hostIPC": True}, "spec.hostIPC"),
    TemplateCase("no host", pod={"hostNetwork": False, "hostPID": False, "hostIPC": False}),
    _container(
        "host port",
        {"ports": [{"containerPort": 80, "hostPort": 80}]},
        "ports.hostPort",
        restricted=True,
    ),
    _container("own port", {"ports": [{"containerPort": 80}]}),
    _container(
        "probe of another host",
        {"livenessProbe": _PROBE},
        "host (of a probe or lifecycle handler)",
        restricted=True,
    ),
    _container(
        "hook to another host",
        {"lifecycle": {"preStop": _PROBE}},
        "host (of a probe or lifecycle handler)",
        restricted=True,
    ),
    _container("own probe", {"livenessProbe": {"tcpSocket": {"port": 80}}}),
    _volume("hostPath", {"hostPath": {"path": "/"}}, "spec.volumes", restricted=True),
    _volume("NFS", {"nfs": {"server": "s", "path": "/"}}, "spec.volumes", restricted=True),
    _volume("claim", {"persistentVolumeClaim": {"claimName": "c"}}),
    _volume("memory", {"emptyDir": {"medium": "Memory"}}),
)

NO_PODS = (
    # A Linux pod that asks for it is invalid before Pod Security looks.
    _context(
        "host process", {"windowsOptions": {"hostProcess": True}}, "windowsOptions.hostProcess"
    ),
    _pod_context(
        "pod of host processes",
        {"windowsOptions": {"hostProcess": True}},
        "windowsOptions.hostProcess",
    ),
)

IDENTITY = (
    _volume(
        "token for another job",
        {
            "projected": {
                "sources": [{"serviceAccountToken": {"path": "t", "audience": "rollcall.dev/0-0"}}]
            }
        },
        _TOKEN,
    ),
    _volume(
        "token for a vault",
        {"projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}},
    ),
    _volume(
        "token of the API server",
        {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
    ),
    _pod(
        "account",
        {"serviceAccountName": "cluster-admin"},
        "spec.serviceAccountName",
        restricted=False,
    ),
    _pod(
        "account by its old field",
        {"serviceAccount": "cluster-admin"},
        "spec.serviceAccountName",
        restricted=False,
    ),
    _pod("allowed account", {"serviceAccountName": ACCOUNT}, "", restricted=False),
    _pod(
        "registry",
        {"imagePullSecrets": [{"name": REGISTRY}, {"name": "other"}]},
        "spec.imagePullSecrets",
        restricted=False,
    ),
    _pod("allowed registry", {"imagePullSecrets": [{"name": REGISTRY}]}, "", restricted=False),
)

SECRETS = (
    _volume("Secret", {"secret": {"secretName": "other"}}, "spec.volumes"),
    _volume("allowed Secret", {"secret": {"secretName": SECRET}}),
    _volume(
        "projected Secret",
        {"projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "other"}}]}},
        "spec.volumes",
    ),
    _volume("allowed projected Secret", {"projected": {"sources": [{"secret": {"name": SECRET}}]}}),
    _volume(
        "Secret of a driver",
        {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "other"}}},
        "spec.volumes",
    ),
    _container("Secret in env", _secret_env("other"), "env"),
    _container("allowed Secret in env", _secret_env(SECRET)),
    _container("Secret as envFrom", {"envFrom": [{"secretRef": {"name": "other"}}]}, "envFrom"),
    _container(
        "allowed envFrom",
        {"envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": SECRET}}]},
    ),
)
