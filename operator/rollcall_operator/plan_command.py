"""The children that manifests would get, without a cluster."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from rollcall_operator.api import labels, yaml_text
from rollcall_operator.api.rljob import JOB_RULES, RLJobSpec
from rollcall_operator.api.rolloutpool import POOL_RULES, RolloutPoolSpec
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import Manifest, ObservedJob
from rollcall_operator.plan.validate import job_errors, parse, template_errors

_UID = "00000000-0000-0000-0000-{:012d}"
"""Stands in for the uids that the API server gives."""
_KINDS: dict[str, tuple[type[Model], tuple[Rule, ...]]] = {
    "RLJob": (RLJobSpec, JOB_RULES),
    "RolloutPool": (RolloutPoolSpec, POOL_RULES),
}


class InvalidManifestError(ValueError):
    """The text is not YAML or holds something wrong; one line for each mistake."""


def children(text: str, *, namespace: str) -> str:
    """YAML of everything that the RLJobs and RolloutPools in a YAML text would get.

    Pools that name a job of the same text get their Deployment. The ConfigMap with the cluster's
    public keys is left out, as only a cluster has them; NetworkPolicies lack the peers that are
    settings of the operator. Raises InvalidManifestError.
    """
    jobs, pools = _read(text, namespace)
    documents: list[Manifest] = []
    for job in jobs:
        mine = [pool for pool in pools if _place(pool) == _place(job)]
        documents += _of_job(job, mine)
    known = {_place(job) for job in jobs}
    for pool in pools:
        if _place(pool) not in known:
            name = pool["spec"]["jobRef"]["name"]
            raise InvalidManifestError(
                f"RolloutPool {pool['metadata']['name']}: spec.jobRef.name: no RLJob {name!r} in "
                "this file; give both in one file"
            )
    return yaml_text.dump(*documents)


def _of_job(job: Manifest, pools: list[Manifest]) -> list[Manifest]:
    """Plan twice: the second time the job's own pools are there, so they get Deployments."""
    observed = ObservedJob(
        namespace=job["metadata"]["namespace"],
        name=job["metadata"]["name"],
        now=0.0,
        job=job,
        pools=tuple(pools),
    )
    first = make_plan(observed)
    made = [
        _created(manifest, 100 + index)
        for index, manifest in enumerate(first.applies)
        if manifest["kind"] == "RolloutPool"
    ]
    second = make_plan(
        ObservedJob(
            namespace=observed.namespace,
            name=observed.name,
            now=0.0,
            job=job,
            pools=(*pools, *made),
        )
    )
    own = [manifest for manifest in second.applies if manifest["kind"] != "RolloutPool"]
    own_pools = [manifest for manifest in first.applies if manifest["kind"] == "RolloutPool"]
    deployments = [manifest for manifest in own if manifest["kind"] == "Deployment"]
    others = [manifest for manifest in own if manifest["kind"] != "Deployment"]
    return [*others, *own_pools, *deployments]


def _created(manifest: Manifest, number: int) -> Manifest:
    """As the API server would return it."""
    metadata = {"uid": _UID.format(number), "resourceVersion": "1", "generation": 1}
    return {**manifest, "metadata": {**manifest["metadata"], **metadata}}


def _place(manifest: Manifest) -> tuple[str, str]:
    """Namespace and job name of a job or of a pool."""
    metadata = manifest["metadata"]
    name = metadata["name"] if manifest["kind"] == "RLJob" else manifest["spec"]["jobRef"]["name"]
    return metadata["namespace"], name


# --- reading ------------------------------------------------------------------------------------


def _read(text: str, namespace: str) -> tuple[list[Manifest], list[Manifest]]:
    """Jobs and pools of the text, with the API server's defaults filled in."""
    try:
        documents = [d for d in yaml.safe_load_all(text) if d is not None]
    except yaml.YAMLError as error:
        raise InvalidManifestError(f"not YAML: {error}") from error
    if not documents:
        raise InvalidManifestError("no manifest found; give an RLJob")
    found: dict[str, list[Manifest]] = {"RLJob": [], "RolloutPool": []}
    mistakes: list[str] = []
    for number, document in enumerate(documents, start=1):
        errors = list(_errors(document))
        if errors:
            mistakes += [f"{_title(document, number)}: {error}" for error in errors]
            continue
        model, _ = _KINDS[document["kind"]]
        spec = model.model_validate(document["spec"]).model_dump(by_alias=True, exclude_none=True)
        metadata = {"namespace": namespace, **document["metadata"]}
        metadata |= {"uid": _UID.format(number), "generation": 1, "resourceVersion": "1"}
        found[document["kind"]].append({**document, "metadata": metadata, "spec": spec})
    if mistakes:
        raise InvalidManifestError("\n".join(mistakes))
    return found["RLJob"], found["RolloutPool"]


def _title(document: Any, number: int) -> str:
    if not isinstance(document, dict):
        return f"document {number}"
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{document.get('kind', 'document')} {name or number}"


def _errors(document: Any) -> Iterator[str]:
    if not isinstance(document, dict) or document.get("kind") not in _KINDS:
        yield "kind: must be RLJob or RolloutPool"
        return
    if document.get("apiVersion") != labels.API_VERSION:
        yield f"apiVersion: must be {labels.API_VERSION}, not {document.get('apiVersion')!r}"
        return
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        yield "metadata.name: is required; add it"
        return
    model, rules = _KINDS[document["kind"]]
    for rule in rules:
        if rule.holds is not None and not rule.holds(metadata["name"]):
            yield rule.message
    if "spec" not in document:
        yield "spec: is required; add it"
        return
    try:
        json.dumps(document["spec"])
    except TypeError as error:
        yield f"spec: {error}; write dates and the like in quotes"
        return
    spec, errors = parse(model, document["spec"], "spec")
    yield from errors
    if isinstance(spec, RLJobSpec):
        yield from job_errors(spec)
    elif isinstance(spec, RolloutPoolSpec):
        yield from template_errors(spec.template, labels.ROLLOUT, "spec.template")
