"""The children that manifests would get, without a cluster."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from rollcall_operator.api import labels, yaml_text
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.manifest_check import (
    KINDS,
    CheckedManifest,
    check_manifest,
    pool_errors,
)
from rollcall_operator.plan.model import Manifest, ObservedJob

_UID = "00000000-0000-0000-0000-{:012d}"
"""Stands in for the uids that the API server gives."""


class InvalidManifestError(ValueError):
    """The text is not YAML or holds something wrong; one line for each mistake."""


def children(text: str, *, namespace: str) -> str:
    """YAML of everything that the RLJobs and RolloutPools in a YAML text would get.

    Pools that name a job of the same text get their Deployment. The ConfigMap with the cluster's
    public keys is left out, as only a cluster has them; NetworkPolicies lack the peers that are
    settings of the operator. Raises InvalidManifestError.
    """
    jobs, pools = _read(text, namespace)
    return yaml_text.dump(*children_of(jobs, pools))


def children_of(jobs: Iterable[Manifest], pools: Iterable[Manifest]) -> list[Manifest]:
    """Everything that checked RLJobs, with defaults and a namespace, and their pools would get."""
    known = [_created(pool, 200 + number) for number, pool in enumerate(pools)]
    documents: list[Manifest] = []
    for number, job in enumerate(jobs, start=1):
        mine = [pool for pool in known if _place(pool) == _place(job)]
        documents += _of_job(_created(job, number), mine)
    return documents


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
    checked: list[tuple[str, CheckedManifest]] = []
    mistakes: list[str] = []
    for number, document in enumerate(documents, start=1):
        title, errors = _title(document, number), list(_errors(document))
        if not errors:
            metadata = {"namespace": namespace, **document["metadata"]}
            found = check_manifest({**document, "metadata": metadata})
            errors += found.errors
            checked.append((title, found))
        mistakes += [f"{title}: {error}" for error in errors]
    if not mistakes:
        everything = [found for _, found in checked]
        mistakes = [
            f"{title}: {error}"
            for title, found in checked
            for error in pool_errors(found, everything)
        ]
    if mistakes:
        raise InvalidManifestError("\n".join(mistakes))
    bodies = [found.body for _, found in checked]
    return (
        [body for body in bodies if body["kind"] == "RLJob"],
        [body for body in bodies if body["kind"] == "RolloutPool"],
    )


def _title(document: Any, number: int) -> str:
    if not isinstance(document, dict):
        return f"document {number}"
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{document.get('kind', 'document')} {name or number}"


def _errors(document: Any) -> Iterator[str]:
    if not isinstance(document, dict) or document.get("kind") not in KINDS:
        yield "kind: must be RLJob or RolloutPool"
        return
    if document.get("apiVersion") != labels.API_VERSION:
        yield f"apiVersion: must be {labels.API_VERSION}, not {document.get('apiVersion')!r}"
        return
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        yield "metadata.name: is required; add it"
