"""Why a pod's volumes cannot be mounted: only the kubelet's events say so."""

import re
from collections.abc import Iterable

from rollcall_operator.plan.children.pod_template import API_KEYS_VOLUME, TLS_VOLUME
from rollcall_operator.plan.model import Manifest, PodFacts

MOUNT_SECONDS = 5.0
"""What mounting may take before the events are read. Most pods take less, and a first failure often
passes, as when the kubelet does not know a new ConfigMap yet."""

_LOOK_SECONDS = 10.0  # no watch event comes while a pod waits for its volumes
_LONGEST = 600

_OPERATION = re.compile(r'^\w+\.\w+ failed for volume "[^"]*" ?: ')
_NAMES = (
    re.compile(r'volume "([^"]+)"'),
    re.compile(r"unmounted volumes=\[([^\]\s,]+)"),
)

# Fields that name what the operator mounts, by the template's path and the volume.
_FIELDS = {
    ("spec.front.template", API_KEYS_VOLUME): "spec.front.apiKeysSecret",
    ("spec.front.template", TLS_VOLUME): "spec.front.tlsSecret",
}

# Text in the kubelet's message, and what to do about it; the first that fits counts.
_CURES = {
    r'secret "[^"]*" not found': "create the Secret, or correct its name",
    r'configmap "[^"]*" not found': "create the ConfigMap, or correct its name",
    r"failed to sync (secret|configmap) cache": (
        "the node's kubelet could not read it from the API server and tries again; if this stays, "
        "see whether the node reaches the API server"
    ),
    r"references non-existent": "add the key that items names, or correct items",
    r"hostPath type check failed": "create the path on the node, or correct hostPath",
    r"Multi-Attach|already (used|attached)|being used": (
        "end the pod that uses it on another node, or use a volume whose accessModes have "
        "ReadWriteMany"
    ),
    r"list of registered CSI drivers": "install the volume's CSI driver on the node",
    r"timed out|refused|unreachable|resolve|no route|DeadlineExceeded": (
        "see whether the storage's server answers and its driver runs on the node"
    ),
}


def is_slow_to_mount(pod: PodFacts, now: float) -> bool:
    """Whether mounting takes so long that events may say why."""
    return pod.mounting_since is not None and now - pod.mounting_since >= MOUNT_SECONDS


def mount_wait(pods: Iterable[PodFacts], now: float) -> float | None:
    """Seconds until the next look at pods that wait for their volumes; None if none does."""
    since = [p.mounting_since for p in pods if p.mounting_since is not None and not p.terminating]
    left = [begun + MOUNT_SECONDS - now for begun in since]
    return min((wait if wait > 0 else _LOOK_SECONDS for wait in left), default=None)


def most_telling(notes: Iterable[tuple[float, str]]) -> str:
    """Of the messages with their times the newest that has a cause.

    The kubelet also says, every two minutes, which volumes it still waits for.
    """
    return max(notes, key=lambda note: (not _only_waits(note[1]), note[0]), default=(0.0, ""))[1]


def describe_failed_mount(pod: PodFacts, template: Manifest, path: str) -> str:
    """`field: what is wrong; what to do`; `path` is the template's in the spec."""
    message = " ".join(pod.mount_failure.split())
    name = next((found[1] for p in _NAMES if (found := p.search(message))), "")
    where, name = _place(name, template, path)
    cause = _OPERATION.sub("", message)[:_LONGEST]
    return (
        f"{where}: volume {name!r} of pod {pod.name} cannot be mounted: {cause}; "
        f"{_cure(message, pod)}"
    )


def _only_waits(note: str) -> bool:
    return note.startswith("Unable to attach or mount volumes")


def _place(name: str, template: Manifest, path: str) -> tuple[str, str]:
    """The volume's path and its name in the template. A claim's message names a PersistentVolume.

    The operator adds volumes that are not in the template; some of them have fields of their own.
    """
    volumes = template["spec"].get("volumes") or ()
    claims = [volume["name"] for volume in volumes if "persistentVolumeClaim" in volume]
    names = [volume["name"] for volume in volumes]
    if name not in names and name.startswith("pvc-") and len(claims) == 1:
        name = claims[0]
    if name in names:
        return f"{path}.spec.volumes[{names.index(name)}]", name
    return _FIELDS.get((path, name), f"{path}.spec"), name


def _cure(message: str, pod: PodFacts) -> str:
    for pattern, cure in _CURES.items():
        if re.search(pattern, message, re.IGNORECASE):
            return cure
    return f"correct the volume (kubectl describe pod {pod.name} shows all attempts)"
