"""What a run needs of this machine, checked before anything starts."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollcall_local.kubelet.machine import GPU, MEMORY, requests, this_machine
from rollcall_local.manifests import ManifestError, Manifests, read, templates
from rollcall_operator.plan.manifest_check import KINDS

Object = dict[str, Any]

_NEEDED = ("torch", "rollcall_local")  # of an environment
_LIST_MISSING = (
    "import sys; from importlib.util import find_spec; "
    "print(*(name for name in sys.argv[1:] if find_spec(name) is None))"
)
_SECONDS = 60  # for an interpreter to start


def read_here(files: list[Path], folders: list[Path], *, images: Mapping[str, Path]) -> Manifests:
    """What `manifests.read` gives, if this machine has what it needs; ManifestError."""
    manifests = read(files, folders, images=images, user=os.getuid())
    check(manifests.objects, images=images, capacity=this_machine().capacity)
    return manifests


def check(
    objects: Iterable[Object],
    *,
    images: Mapping[str, Path],
    capacity: Mapping[str, Decimal],
    platform: str = sys.platform,
) -> None:
    """ManifestError with a line for each thing that is not there.

    `images` are environments (their Python) by image name; `capacity` is by resource.
    """
    if platform != "linux":
        raise ManifestError(
            "a run needs Linux: each pod has an address in 127/8, the processes of a pod are found "
            "in /proc, and they end with this one by prctl. On macOS, run it in a container or a "
            "virtual machine with Linux. The other commands work here"
        )
    manifests = list(objects)
    problems = [*_of_environments(manifests, images), *_of_sizes(manifests, capacity)]
    if problems:
        raise ManifestError("\n".join(problems))


def _of_environments(objects: list[Object], images: Mapping[str, Path]) -> Iterator[str]:
    pods = [template["spec"] for body in objects for _, template in _templates(body)]
    containers = [c for pod in pods for c in (*pod["containers"], *pod.get("initContainers", ()))]
    known = sorted({each["image"] for each in containers if "image" in each})
    for image in images:
        if image not in known:
            yield f"--image {image}: no container has this image; there are {', '.join(known)}"
    for python in sorted({Path(sys.executable), *images.values()}):
        missing = _missing(python)
        if missing:
            yield (
                f"{python} has no {' and no '.join(missing)}; install Rollcall there: "
                f"{python} -m pip install 'rollcall[local]'"
            )


def _missing(python: Path) -> list[str]:
    """Packages that an environment lacks."""
    if python == Path(sys.executable):
        return [name for name in _NEEDED if find_spec(name) is None]
    try:
        done = subprocess.run(
            [python, "-c", _LIST_MISSING, *_NEEDED],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ManifestError(f"{python} cannot be run: {error}; see --image") from error
    return done.stdout.split()


def _of_sizes(objects: list[Object], capacity: Mapping[str, Decimal]) -> Iterator[str]:
    """A pod that would wait for ever, as it asks for more than there is."""
    for body in objects:
        for path, template in _templates(body):
            for name, amount in requests(template).items():
                there_is = capacity.get(name, Decimal(0))
                if amount > there_is:
                    yield (
                        f"{body['kind']} {body['metadata']['name']}: {path}.spec.containers: "
                        f"resources.requests.{name}: a pod asks for {_text(name, amount)}, and "
                        f"this machine has {_text(name, there_is)}; ask for less"
                    )


def _templates(body: Object) -> Iterator[tuple[str, Object]]:
    """Of an RLJob or a RolloutPool, with their paths; other objects have none."""
    if body["kind"] in KINDS:
        yield from templates(body["kind"], body["spec"])


def _text(name: str, amount: Decimal) -> str:
    if name == MEMORY:
        return f"{amount / 2**20:.0f}Mi"
    return f"{amount.normalize():f}" + (" GPUs" if name == GPU else "")
