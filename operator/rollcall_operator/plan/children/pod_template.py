"""Turns a user's pod template into that of a worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.model import Manifest
from rollcall_protocol import pod_contract

TOKEN_VOLUME = "rollcall-token"  # noqa: S105 - a name
TRUST_VOLUME = "rollcall-trust"
TLS_VOLUME = "rollcall-tls"
API_KEYS_VOLUME = "rollcall-api-keys"
STATE_VOLUME = "rollcall-state"
CHECKPOINT_VOLUME = "rollcall-checkpoints"
TMP_VOLUME = "rollcall-tmp"
SHARED_MEMORY_VOLUME = "rollcall-shm"
RESERVED_VOLUMES = (
    TOKEN_VOLUME,
    TRUST_VOLUME,
    TLS_VOLUME,
    API_KEYS_VOLUME,
    STATE_VOLUME,
    CHECKPOINT_VOLUME,
    TMP_VOLUME,
    SHARED_MEMORY_VOLUME,
)
TOKEN_PATH = "/var/run/rollcall/token"  # noqa: S105 - a folder
TRUST_PATH = "/var/run/rollcall/trust"
TLS_PATH = "/var/run/rollcall/tls"
API_KEYS_PATH = "/var/run/rollcall/api-keys"
TOKEN_SECONDS = 3600
"""The kubelet renews a token after 80 % of this."""
STATE_PATH = "/var/lib/rollcall/state"
TMP_PATH = "/tmp"  # noqa: S108 - a mount of the container's own
SHARED_MEMORY_PATH = "/dev/shm"  # noqa: S108 - a mount of the container's own
STATE_SIZE, TMP_SIZE = "64Mi", "10Gi"
"""A pod that writes more is evicted, before it fills the node's disk."""
SHARED_MEMORY_SIZE = "10Gi"
"""At most; it counts as memory of the container, whose limit bounds it, too."""
LOST_NODE_SECONDS = 30
"""How long a worker stays on a node that does not respond; the default of Kubernetes is 300 s."""
STARTUP_SECONDS = 300
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True, slots=True)
class WorkerAdditions:
    """What the operator adds to a template. `ports` are (name, number).

    `command` is that of a worker without one; empty for the image's own. `usual_env` are variables
    that the template may set otherwise. `shared_memory`: whether the worker's processes share more
    than the 64 MiB of a container. `startup_seconds`: how long it may take to load what it needs,
    before the kubelet restarts it.
    """

    role: str
    job_uid: str
    labels: Mapping[str, str]
    command: str
    env: tuple[tuple[str, str], ...]
    ports: tuple[tuple[str, int], ...]
    volumes: tuple[Manifest, ...]
    mounts: tuple[Manifest, ...]
    grace_seconds: int | None = None
    readiness_gate: str | None = None
    shared_memory: bool = False
    startup_seconds: int = STARTUP_SECONDS
    usual_env: tuple[Manifest, ...] = ()


def worker_container(template: Manifest, role: str) -> Manifest | None:
    """The container that is the worker: the one named after the role, else the only one."""
    containers: list[Manifest] = template["spec"]["containers"]
    named = [container for container in containers if container["name"] == role]
    if named:
        return named[0]
    return containers[0] if len(containers) == 1 else None


def worker_template(template: Manifest, extras: WorkerAdditions) -> Manifest:
    """The pod template of a StatefulSet or Deployment. The template has passed validation."""
    result: Manifest = _without_nulls(template)
    spec = result["spec"]
    worker = worker_container(result, extras.role)
    if worker is None:
        raise ValueError("the template has no worker container")
    metadata = result.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **extras.labels}
    annotations = {DEFAULT_CONTAINER: worker["name"], **(metadata.get("annotations") or {})}
    own = {labels.WORKER_CONTAINER: worker["name"], labels.JOB_UID: extras.job_uid}
    metadata["annotations"] = {**annotations, **own}
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    spec["volumes"] = [*(spec.get("volumes") or ()), *extras.volumes]
    if extras.grace_seconds is not None:
        given = spec.get("terminationGracePeriodSeconds") or 0
        spec["terminationGracePeriodSeconds"] = max(given, extras.grace_seconds)
    if extras.readiness_gate:
        gates = spec.get("readinessGates") or []
        spec["readinessGates"] = [*gates, {"conditionType": extras.readiness_gate}]
    spec["tolerations"] = _with_outages(spec.get("tolerations") or [])
    _complete(worker, extras)
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        _restrict(container, spec.get("securityContext") or {})
    _protect_root(worker, spec)
    if extras.shared_memory:
        medium = {"medium": "Memory", "sizeLimit": SHARED_MEMORY_SIZE}
        _mount_own(worker, spec, SHARED_MEMORY_VOLUME, SHARED_MEMORY_PATH, medium)
    return result


def _without_nulls(value: Any) -> Any:
    """A copy without fields that are null: Kubernetes takes them as not set."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def token_volume(audiences: Mapping[str, str]) -> tuple[Manifest, Manifest]:
    """The pod's own tokens as files, by name and audience: the volume and its mount.

    Apart from the ConfigMap: a projected volume of both would renew no token while that is away.
    """
    sources = [
        {
            "serviceAccountToken": {
                "path": name,
                "audience": audience,
                "expirationSeconds": TOKEN_SECONDS,
            }
        }
        for name, audience in audiences.items()
    ]
    return (
        {"name": TOKEN_VOLUME, "projected": {"sources": sources}},
        {"name": TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True},
    )


def certificate_volume(spec: RLJobSpec, child: str) -> list[tuple[Manifest, Manifest]]:
    """The certificate of the pods of `child`, if they show one: the volume and its mount."""
    if not spec.tls.enabled:
        return []
    secret = spec.tls.secret_name or labels.certificate_name(child)
    volume = {"name": TLS_VOLUME, "secret": {"secretName": secret}}
    return [(volume, {"name": TLS_VOLUME, "mountPath": TLS_PATH, "readOnly": True})]


def common_volumes(job: str) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """Volumes of state and public keys of every worker of a job, and their mounts."""
    volumes: tuple[Manifest, ...] = (
        {"name": TRUST_VOLUME, "configMap": {"name": labels.trust_name(job)}},
        {"name": STATE_VOLUME, "emptyDir": {"sizeLimit": STATE_SIZE}},
    )
    mounts: tuple[Manifest, ...] = (
        {"name": TRUST_VOLUME, "mountPath": TRUST_PATH, "readOnly": True},
        {"name": STATE_VOLUME, "mountPath": STATE_PATH},
    )
    return volumes, mounts


def _with_outages(given: list[Manifest]) -> list[Manifest]:
    """Tolerations that end early on lost nodes, where the user does not set how long."""
    configured = {
        item.get("key") for item in given if item.get("effect", "NoExecute") in {"", "NoExecute"}
    }
    added = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for key in _LOST_NODE
        if not configured & {key, None, ""}
    ]
    return [*given, *added]


def _complete(worker: Manifest, extras: WorkerAdditions) -> None:
    if extras.command and not worker.get("command") and not worker.get("args"):
        worker["command"] = [extras.command]
    given = worker.get("env") or ()
    named = {variable.get("name") for variable in given}
    usual = (variable for variable in extras.usual_env if variable["name"] not in named)
    worker["env"] = [*given, *_env(extras), *usual]
    ports = worker.get("ports") or []
    taken = {port.get("containerPort") for port in ports}
    worker["ports"] = [
        *ports,
        *(
            {"name": name, "containerPort": number, "protocol": "TCP"}
            for name, number in extras.ports
            if number not in taken
        ),
    ]
    worker["volumeMounts"] = [*(worker.get("volumeMounts") or ()), *extras.mounts]
    worker.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    # Readiness is seen within a second, a hang after a minute.
    startup = _probe("/healthz", period=1, failures=extras.startup_seconds)
    worker.setdefault("startupProbe", startup)
    worker.setdefault("livenessProbe", _probe("/healthz", period=10, failures=6))
    worker.setdefault("readinessProbe", _probe("/readyz", period=1, failures=3))


def _env(extras: WorkerAdditions) -> list[Manifest]:
    values = [variable(name, value) for name, value in extras.env]
    fields = ((pod_contract.POD_NAME, "metadata.name"), (pod_contract.POD_UID, "metadata.uid"))
    for name, path in (*fields, (pod_contract.POD_IP, "status.podIP")):
        values.append(field_variable(name, path))
    if any(mount["name"] == TOKEN_VOLUME for mount in extras.mounts):
        values.append(variable(pod_contract.TOKEN_DIR, TOKEN_PATH))
    if any(mount["name"] == TLS_VOLUME for mount in extras.mounts):
        values.append(variable(pod_contract.TLS_DIR, TLS_PATH))
    values.append(variable(pod_contract.TRUST_DIR, TRUST_PATH))
    values.append(variable(pod_contract.STATE_DIR, STATE_PATH))
    return values


def variable(name: str, value: str) -> Manifest:
    """A variable with this very value: the kubelet makes `$` of `$$`, and expands `$(NAME)`, which
    could be a Secret's value, in what is not escaped.
    """
    return {"name": name, "value": value.replace("$", "$$")}


def field_variable(name: str, path: str) -> Manifest:
    """A variable with a field of the pod's own."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": pod_contract.METRICS_PORT},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _restrict(container: Manifest, pod: Mapping[str, Any]) -> None:
    """The restricted Pod Security level, where the template sets nothing else."""
    context: Manifest = dict(container.get("securityContext") or {})
    if context.get("privileged"):
        return
    context.setdefault("allowPrivilegeEscalation", False)
    context.setdefault("capabilities", {"drop": ["ALL"]})
    if "seccompProfile" not in pod:
        context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    if context.get("runAsUser", pod.get("runAsUser")) != 0 and "runAsNonRoot" not in pod:
        context.setdefault("runAsNonRoot", True)
    container["securityContext"] = context


def _protect_root(worker: Manifest, spec: Manifest) -> None:
    """A read-only root file system for the worker, and a volume at /tmp, unless it has one."""
    context = worker.get("securityContext") or {}
    if context.get("privileged") or not context.setdefault("readOnlyRootFilesystem", True):
        return
    _mount_own(worker, spec, TMP_VOLUME, TMP_PATH, {"sizeLimit": TMP_SIZE})


def _mount_own(worker: Manifest, spec: Manifest, name: str, path: str, empty_dir: Manifest) -> None:
    """Mount an emptyDir of the pod's own at `path`, unless the worker has a mount there."""
    if all(mount.get("mountPath", "").rstrip("/") != path for mount in worker["volumeMounts"]):
        spec["volumes"].append({"name": name, "emptyDir": empty_dir})
        worker["volumeMounts"].append({"name": name, "mountPath": path})


def with_default_user(child: Manifest, user: int | None) -> Manifest:
    """A StatefulSet or Deployment of workers, with this user id where the template names none.

    The kubelet gives a pod's token to the pod's user alone (mode 0600) if all of its containers
    name one and the same user; otherwise every user may read it (0644).

    A pod of several containers is left alone, since their images may need different users, and so
    is a privileged container.
    """
    pod = child["spec"]["template"]["spec"]
    containers = pod["containers"]
    if user is None or len(containers) > 1 or pod.get("initContainers"):
        return child
    context: Manifest = containers[0].get("securityContext") or {}
    named = "runAsUser" in context or "runAsUser" in (pod.get("securityContext") or {})
    if not named and not context.get("privileged"):
        containers[0]["securityContext"] = {**context, "runAsUser": user}
    return child
