"""What a pod template may ask for on one machine, and what is refused, by field."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollcall_local.kubelet.machine import COUNTED, IGNORED
from rollcall_local.kubelet.volumes import KINDS

Object = dict[str, Any]

_PLACEMENT = ("nodeSelector", "affinity", "topologySpreadConstraints", "runtimeClassName")
_OF_CONTAINER = ("lifecycle", "volumeDevices")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def refusals(
    template: Object, path: str, *, images: Mapping[str, Path], user: int
) -> Iterator[str]:
    """One line for each field that cannot be had; `images` are environments by image name, and
    `user` the id of the user who runs all of it.
    """
    spec = template.get("spec") or {}
    for field in _PLACEMENT:
        if spec.get(field):
            yield f"{path}.spec.{field}: there is one machine; remove it for a local run"
    for number, volume in enumerate(spec.get("volumes") or ()):
        kinds = [kind for kind in volume if kind != "name"]
        for kind in kinds:
            if kind not in KINDS:
                yield (
                    f"{path}.spec.volumes[{number}].{kind}: is not there on one machine; use one "
                    f"of {', '.join(KINDS)}"
                )
    yield from _user_refusals(spec.get("securityContext") or {}, f"{path}.spec", user)
    for group in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(group) or ()):
            where = f"{path}.spec.{group}[{number}]"
            yield from _of_container(container, where, images=images, user=user)


def _of_container(
    container: Object, path: str, *, images: Mapping[str, Path], user: int
) -> Iterator[str]:
    for field in _OF_CONTAINER:
        if container.get(field):
            yield f"{path}.{field}: is not there on one machine; remove it for a local run"
    if container.get("restartPolicy") == "Always":
        yield f"{path}.restartPolicy: an init container that stays is not there on one machine"
    image = container.get("image", "")
    python = images.get(image)
    if python is not None and not python.exists():
        yield f"{path}.image: {image} stands for {python}, which does not exist; see --image"
    resources = container.get("resources") or {}
    for name in {*(resources.get("requests") or ()), *(resources.get("limits") or ())}:
        if name not in (*COUNTED, *IGNORED):
            yield (
                f"{path}.resources: {name} is not handed out on one machine; known are "
                f"{', '.join(COUNTED)}"
            )
    for number, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("subPathExpr"):
            yield (
                f"{path}.volumeMounts[{number}].subPathExpr: is not there on one machine; use "
                f"subPath"
            )
    yield from _probe_refusals(container, path)
    yield from _user_refusals(container.get("securityContext") or {}, path, user)


def _probe_refusals(container: Object, path: str) -> Iterator[str]:
    named = {port.get("name") for port in container.get("ports") or ()}
    for field in _PROBES:
        probe = container.get(field) or {}
        if "grpc" in probe:
            yield f"{path}.{field}.grpc: is not asked here; use httpGet, tcpSocket or exec"
        for kind in ("httpGet", "tcpSocket"):
            port = (probe.get(kind) or {}).get("port", 0)
            if isinstance(port, str) and port not in named:
                yield f"{path}.{field}.{kind}.port: the container has no port {port}; add it"


def _user_refusals(context: Object, path: str, user: int) -> Iterator[str]:
    wanted = context.get("runAsUser")
    if wanted is not None and wanted != user:
        yield (
            f"{path}.securityContext.runAsUser: {wanted}: all processes run as the user of this "
            f"program, {user}; remove it for a local run"
        )
    if context.get("privileged"):
        yield f"{path}.securityContext.privileged: is not there on one machine; remove it"
