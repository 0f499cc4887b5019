"""Reads the manifests of a local run, and says all that cannot be had, before anything starts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.errors import InvalidError
from rollcall_local.api_server.kinds import CLAIMS
from rollcall_local.errors import LocalError
from rollcall_local.kubelet.supported import refusals
from rollcall_operator.api import labels
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from rollcall_operator.plan.children.pod_template import worker_container
from rollcall_operator.plan.manifest_check import (
    KINDS,
    CheckedManifest,
    check_manifest,
    pool_errors,
)

Object = dict[str, Any]

NAMESPACE = "default"
_KNOWN = {
    resource.kind: resource
    for resource in (RL_JOBS, ROLLOUT_POOLS, CONFIG_MAPS, SECRETS, CLAIMS, SERVICE_ACCOUNTS)
}
_FIRST = ("ConfigMap", "Secret", "PersistentVolumeClaim", "ServiceAccount", "RLJob", "RolloutPool")
_KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")


class ManifestError(LocalError):
    """The manifests cannot run here; one line for each reason."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """What is to be applied, in an order in which each finds what it names.

    `checked` are its RLJobs and RolloutPools with all defaults.
    """

    objects: tuple[Object, ...]
    checked: tuple[CheckedManifest, ...]

    @property
    def jobs(self) -> tuple[Object, ...]:
        """The RLJobs."""
        return tuple(body for body in self.objects if body["kind"] == RL_JOBS.kind)

    def resource(self, body: Object) -> Resource:
        """Of one of the objects."""
        return _KNOWN[body["kind"]]


def read(
    files: list[Path], folders: list[Path], *, images: Mapping[str, Path], user: int
) -> Manifests:
    """Files of YAML, and folders with a kustomization.

    `images` and `user` are as in `supported.refusals`. ManifestError.
    """
    documents = [each for file in files for each in _documents(file)]
    documents += [each for folder in folders for each in _kustomized(folder)]
    documents = [each for each in documents if not _is_network_policy(each[1])]
    mistakes = [error for where, body in documents for error in _mistakes(where, body)]
    if mistakes:
        raise ManifestError("\n".join(mistakes))
    placed = [_placed(body) for _, body in documents]
    checked = [check_manifest(body) for body in placed if body["kind"] in KINDS]
    mistakes = [error for body in placed for error in _shape_errors(body)]
    mistakes += [error for each in checked for error in _refusals(each, checked, images, user)]
    if not mistakes and not any(body["kind"] == RL_JOBS.kind for body in placed):
        mistakes = ["no RLJob is given"]
    if mistakes:
        raise ManifestError("\n".join(mistakes))
    ordered = sorted(placed, key=lambda body: _FIRST.index(body["kind"]))
    return Manifests(tuple(ordered), tuple(checked))


def _documents(file: Path) -> list[tuple[str, Object]]:
    try:
        found = list(yaml.safe_load_all(file.read_text()))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file}: {error}") from error
    return [(f"{file}, document {n}", body) for n, body in enumerate(found, 1) if body is not None]


def _is_network_policy(body: Any) -> bool:
    """There is no network to divide."""
    return isinstance(body, dict) and body.get("kind") == "NetworkPolicy"


def _mistakes(where: str, body: Any) -> Iterator[str]:
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        yield f"{where}: not a manifest: it has no metadata"
        return
    resource = _KNOWN.get(body.get("kind", ""))
    if resource is None:
        yield f"{where}: kind: {body.get('kind')!r} is none of {', '.join(_KNOWN)}"
    elif body.get("apiVersion") != resource.api_version:
        yield f"{where}: apiVersion: must be {resource.api_version}, not {body.get('apiVersion')!r}"
    elif not isinstance(body["metadata"].get("name"), str):
        yield f"{where}: metadata.name: is required; add it"


def _placed(body: Object) -> Object:
    """In a namespace; a job without NetworkPolicies of its own either."""
    placed = {**body, "metadata": {"namespace": NAMESPACE, **body["metadata"]}}
    if body["kind"] == RL_JOBS.kind and isinstance(body.get("spec"), dict):
        placed["spec"] = {**body["spec"], "networkPolicy": {"enabled": False}}
    return placed


def _shape_errors(body: Object) -> Iterator[str]:
    """Of what belongs to a job."""
    if body["kind"] not in KINDS:
        try:
            admit(_KNOWN[body["kind"]], body, None)
        except InvalidError as error:
            yield str(error)


def _refusals(
    checked: CheckedManifest,
    others: list[CheckedManifest],
    images: Mapping[str, Path],
    user: int,
) -> Iterator[str]:
    body = checked.body
    kind = body["kind"]
    problems = list(checked.errors)
    if checked.spec is not None:
        problems += pool_errors(checked, others)
        problems += _command_refusals(body["spec"]) if kind == RL_JOBS.kind else ()
        for path, template in templates(kind, body["spec"]):
            problems += refusals(template, path, images=images, user=user)
    for problem in problems:
        yield f"{kind} {body['metadata']['name']}: {problem}"


def _command_refusals(spec: Object) -> Iterator[str]:
    """A program of the user's own that only an image would name."""
    trainer = spec["trainer"]
    worker = worker_container(trainer["template"], labels.TRAINER) or {}
    named = worker.get("command") or worker.get("args")
    if trainer["kind"] == "External" and not named:
        yield (
            "spec.trainer.template: the trainer's container has no command, and there is no image "
            "on one machine that has one; add command"
        )


def templates(kind: str, spec: Object) -> Iterator[tuple[str, Object]]:
    """Every pod template, with its path."""
    if kind == ROLLOUT_POOLS.kind:
        yield "spec.template", spec["template"]
        return
    yield "spec.trainer.template", spec["trainer"]["template"]
    for number, rollout in enumerate(spec.get("rollouts") or ()):
        yield f"spec.rollouts[{number}].template", rollout["template"]
    for field in ("reference", "front"):
        template = (spec.get(field) or {}).get("template")
        if template is not None:
            yield f"spec.{field}.template", template


# --- kustomizations -----------------------------------------------------------------------------


def _kustomized(folder: Path) -> list[tuple[str, Object]]:
    """The resources of a kustomization, and what its generators make; no patches."""
    file = next((folder / name for name in _KUSTOMIZATIONS if (folder / name).exists()), None)
    if file is None:
        raise ManifestError(f"{folder}: there is no {_KUSTOMIZATIONS[0]}")
    ((_, content),) = _documents(file)
    known = {
        "apiVersion",
        "kind",
        "resources",
        "namespace",
        "configMapGenerator",
        "secretGenerator",
        "generatorOptions",
    }
    strange = sorted(content.keys() - known)
    if strange:
        raise ManifestError(
            f"{file}: {', '.join(strange)}: not known here; run `kubectl kustomize {folder}` and "
            "give its output"
        )
    found = []
    for name in content.get("resources") or ():
        place = folder / name
        found += _kustomized(place) if place.is_dir() else _documents(place)
    for field, kind in (("configMapGenerator", "ConfigMap"), ("secretGenerator", "Secret")):
        for entry in content.get(field) or ():
            found.append((f"{file}, {field} {entry.get('name')}", _generated(kind, entry, folder)))
    if content.get("namespace"):
        for _, body in found:
            body.setdefault("metadata", {})["namespace"] = content["namespace"]
    return found


def _generated(kind: str, entry: Object, folder: Path) -> Object:
    """Without the hash that kustomize adds to its name: names in the manifests stay as well."""
    text: dict[str, str] = {}
    for item in entry.get("files") or ():
        key, _, path = item.rpartition("=")
        file = folder / path
        try:
            text[key or file.name] = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"{folder}: generator {entry.get('name')}: {error}") from error
    for item in entry.get("literals") or ():
        key, _, value = item.partition("=")
        text[key] = value
    field = "data" if kind == "ConfigMap" else "stringData"
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": entry["name"]},
        field: text,
    }
