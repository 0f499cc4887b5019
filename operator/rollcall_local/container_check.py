"""Runs the check of a job's containers in the environment that each would have here.

The program is `rollcall_runtime.train.job_check`, a process of its own in place of the worker: this
one imports neither torch nor the user's code.
"""

import copy
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollcall_local.api_server.errors import ApiStatusError, MissingObjectError
from rollcall_local.controllers.stateful_set import POD_INDEX
from rollcall_local.kubelet import pod_environment
from rollcall_local.kubelet.node import fields_of
from rollcall_local.kubelet.pod_environment import UnsupportedValueError
from rollcall_local.kubelet.volume_content import VolumeError, VolumeSources, decoded
from rollcall_local.kubelet.volumes import PodVolumes
from rollcall_operator.api import labels
from rollcall_operator.plan.children.pod_template import TLS_VOLUME, TOKEN_VOLUME, TRUST_VOLUME

Object = dict[str, Any]

_PROGRAM = "rollcall_runtime.train.job_check"
_SECONDS = 600  # a model may have to be fetched first
_LAST_LINES = 3  # of what a program said that failed
_OF_A_RUN = frozenset({TOKEN_VOLUME, TRUST_VOLUME, TLS_VOLUME})  # there is nothing to prove now


@dataclass(frozen=True, slots=True)
class Report:
    """What a container's check says; see `rollcall_runtime.train.job_check.ContainerReport`."""

    wrong: Sequence[str] = ()
    right: Sequence[str] = ()
    warnings: Sequence[str] = ()
    prompts: Sequence[Any] = ()
    parameters: int = 0


@dataclass(slots=True)
class ContainerCheck:
    """Checks containers of a job, with folders below `folder` for their volumes.

    Attributes:
        objects: ConfigMaps, Secrets and PersistentVolumeClaims, from the manifests.
        claims: folder of the volumes of PersistentVolumeClaims, those of earlier runs included.
        images: environments (their Python) by image name; any other image is this one's.
    """

    objects: Iterable[Object]
    folder: Path
    claims: Path
    images: Mapping[str, Path] = field(default_factory=dict)

    def check(self, owner: Object, role: str, path: str, prompts: Sequence[Any] = ()) -> Report:
        """The report of the worker of a StatefulSet or Deployment; `path` leads to its template."""
        pod = _pod_of(owner)
        name = pod["metadata"]["annotations"][labels.WORKER_CONTAINER]
        container = next(each for each in pod["spec"]["containers"] if each["name"] == name)
        _without_volumes_of_a_run(pod, container)
        python = self.images.get(container.get("image", ""), Path(sys.executable))
        place = self.folder / pod["metadata"]["name"]
        place.mkdir(parents=True)
        try:
            environment, folder, mounts = self._surroundings(pod, container, place, python)
        except (ApiStatusError, UnsupportedValueError, VolumeError, OSError) as error:
            return Report(wrong=[f"{path}: {error}; correct the template, or add what it names"])
        command = [str(python), "-m", _PROGRAM, role]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(list(prompts)),
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
            return _as_mounted(Report(**json.loads(done.stdout)), mounts)
        except subprocess.TimeoutExpired:
            problem = f"its check takes longer than {_SECONDS} s; is a model or data set fetched?"
        except OSError as error:
            problem = f"{python} cannot be started: {error}; see --image"
        except (ValueError, TypeError):
            said = "; ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
            problem = f"its check ended with exit code {done.returncode}: {said}"
        return Report(wrong=[f"{path}: {problem}"])

    def _surroundings(
        self, pod: Object, container: Object, place: Path, python: Path
    ) -> tuple[dict[str, str], Path, dict[str, Path]]:
        """The variables of the container, the folder that it starts in, and those of its mounts."""
        fields = fields_of(pod, "127.0.0.1")
        namespace = pod["metadata"]["namespace"]

        def read(kind: str, name: str) -> dict[str, bytes]:
            return decoded(self._found(kind, namespace, name))

        def read_text(kind: str, name: str) -> dict[str, str]:
            return {key: value.decode(errors="replace") for key, value in read(kind, name).items()}

        def has_claim(name: str) -> bool:
            is_kept = (self.claims / namespace / name).is_dir()
            return is_kept or bool(self._found("PersistentVolumeClaim", namespace, name))

        sources = VolumeSources(
            read=read,
            token=lambda _: "",
            has_claim=has_claim,
            claims=self.claims / namespace,
            fields=fields,
        )
        volumes = PodVolumes(pod, place / "volumes", sources)
        volumes.prepare()
        mounts = volumes.mounts(container)
        environment = pod_environment.environment(
            pod_environment.variables(container, fields, read_text),
            mounts,
            python=python,
            hosts_file=place / "hosts.json",
            gpus=(),
        )
        folder = container.get("workingDir") or str(place)
        return environment, Path(pod_environment.with_folders(folder, mounts)), mounts

    def _found(self, kind: str, namespace: str, name: str) -> Object:
        for body in self.objects:
            metadata = body["metadata"]
            if (body["kind"], metadata["namespace"], metadata["name"]) == (kind, namespace, name):
                return body
        raise MissingObjectError(f"{kind} {name} is not in these manifests")


def _as_mounted(report: Report, mounts: Mapping[str, Path]) -> Report:
    """With the paths that the manifest has, in place of temporary folders."""

    def named(texts: Sequence[str]) -> list[str]:
        for path, folder in mounts.items():
            texts = [text.replace(str(folder), path) for text in texts]
        return list(texts)

    return replace(
        report,
        wrong=named(report.wrong),
        right=named(report.right),
        warnings=named(report.warnings),
    )


def _pod_of(owner: Object) -> Object:
    """One that a StatefulSet or Deployment would have."""
    template, metadata = copy.deepcopy(owner["spec"]["template"]), owner["metadata"]
    own = {"name": metadata["name"], "namespace": metadata["namespace"], "uid": "check"}
    own["labels"] = {**template["metadata"].get("labels", {}), POD_INDEX: "0"}
    return {"metadata": {**template["metadata"], **own}, "spec": template["spec"]}


def _without_volumes_of_a_run(pod: Object, container: Object) -> None:
    """Tokens and keys come from an operator and an API server, which are not there yet."""
    spec = pod["spec"]
    spec["volumes"] = [v for v in spec.get("volumes") or () if v["name"] not in _OF_A_RUN]
    mounts = container.get("volumeMounts") or ()
    container["volumeMounts"] = [m for m in mounts if m["name"] not in _OF_A_RUN]
