"""What the API server holds of each job, as far as watches have reported it.

A pod is kept as the few facts that planning needs, any other object as compressed JSON without
what only the API server reads: so thousands of jobs fit into memory.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from rollcall_operator.api import labels
from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from rollcall_operator.plan.model import JobKey, PodFacts
from rollcall_operator.plan.pod_facts import pod_facts

CHILDREN = (CONFIG_MAPS, SERVICES, STATEFUL_SETS, DEPLOYMENTS, NETWORK_POLICIES)
KINDS = (RL_JOBS, ROLLOUT_POOLS, PODS, *CHILDREN)

_FASTEST = 1  # zlib's level: half the time of the usual one, a tenth larger

_READ_OF_STATUS = ("observedGeneration", "replicas", "updateRevision")
"""What planning reads of a child's status, beside the condition that its pods are refused."""


class Kept(NamedTuple):
    """One object: the job that it belongs to (None: to none), its kind's plural, and its name.

    Without `pod`: `packed` is the compressed JSON of all but status and resourceVersion, `digest`
    a digest of that, `status` the JSON of what is read of the status.
    """

    job: JobKey | None
    plural: str
    name: str
    version: str
    packed: bytes = b""
    digest: bytes = b""
    status: bytes = b""
    pod: PodFacts | None = None

    def differs_from(self, other: "Kept | None") -> bool:
        """Whether planning can tell the two apart: by more than their resourceVersion."""
        if other is None or self.job != other.job:
            return True
        if self.pod is not None and other.pod is not None:
            return self.pod != replace(other.pod, version=self.pod.version)
        return (self.digest, self.status) != (other.digest, other.status)


@dataclass(frozen=True, slots=True)
class JobObjects:
    """One job's objects: the RLJob, RolloutPools that name it, children by label, and pods.

    `contents` are digests of all but pods, without status and resourceVersion; None: not known.
    """

    job: Object | None
    pools: tuple[Object, ...]
    children: tuple[Object, ...]
    pods: tuple[PodFacts, ...]
    contents: frozenset[bytes] | None = None


def keep(resource: Resource, found: Object) -> Kept:
    """What is kept of an object as the API server sends it."""
    metadata = dict(found["metadata"])
    job, name, version = job_of(resource, found), metadata["name"], metadata["resourceVersion"]
    if resource == PODS:
        return Kept(job, resource.plural, name, version, pod=pod_facts(found))
    del metadata["resourceVersion"]
    metadata.pop("managedFields", None)
    status = found.get("status")
    if status is not None and resource in CHILDREN:
        status = _read_of(status)
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}  # lists leave them out
    body = {**found, **kind, "metadata": metadata}
    body.pop("status", None)
    content = orjson.dumps(body)
    return Kept(
        job,
        resource.plural,
        name,
        version,
        packed=zlib.compress(content, _FASTEST),
        digest=blake2b(content, digest_size=16).digest(),
        # A copy: orjson's own bytes keep its buffer, 4 KiB for four characters.
        status=bytes(memoryview(orjson.dumps(status))),
    )


def _read_of(status: Object) -> Object:
    refused = [c for c in status.get("conditions") or () if c["type"] == "ReplicaFailure"]
    return {
        **{name: status[name] for name in _READ_OF_STATUS if name in status},
        **({"conditions": refused} if refused else {}),
    }


def job_of(resource: Resource, found: Mapping[str, Any]) -> JobKey | None:
    """Namespace and name of the job that an object is, names, or is labelled with."""
    metadata = found["metadata"]
    if resource == RL_JOBS:
        job = metadata["name"]
    elif resource == ROLLOUT_POOLS:
        job = ((found.get("spec") or {}).get("jobRef") or {}).get("name")
    else:
        job = (metadata.get("labels") or {}).get(labels.JOB)
    return (metadata["namespace"], job) if job else None


class JobStore:
    """Objects by the job that they belong to."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, dict[tuple[str, str], Kept]] = {}

    def change(self, before: Kept | None, now: Kept | None) -> None:
        """An object is now so; None: it is gone, or is new."""
        if before is not None and before.job is not None:
            objects = self._jobs.get(before.job, {})
            objects.pop((before.plural, before.name), None)
            if not objects:
                self._jobs.pop(before.job, None)
        if now is not None and now.job is not None:
            self._jobs.setdefault(now.job, {})[now.plural, now.name] = now

    def jobs(self) -> list[JobKey]:
        """Each job of which there is an object."""
        return list(self._jobs)

    def objects(self, key: JobKey) -> JobObjects:
        """All of one job, sorted by name."""
        own = [kept for _, kept in sorted(self._jobs.get(key, {}).items())]

        def of(*kinds: Resource) -> tuple[Object, ...]:
            return tuple(_unpacked(k) for kind in kinds for k in own if k.plural == kind.plural)

        return JobObjects(
            job=next(iter(of(RL_JOBS)), None),
            pools=of(ROLLOUT_POOLS),
            children=of(*CHILDREN),
            pods=tuple(kept.pod for kept in own if kept.pod is not None),
            contents=frozenset(kept.digest for kept in own if kept.pod is None),
        )

    def lives(self, key: JobKey, plural: str, name: str, uid: str) -> bool:
        """Whether that very object is there, and nothing has begun to delete it."""
        kept = self._jobs.get(key, {}).get((plural, name))
        return kept is not None and _identity(kept) == (uid, False)

    def identities(self, key: JobKey) -> set[tuple[str, str, str]]:
        """Plural of the kind, name and uid of each object of a job."""
        kept = self._jobs.get(key, {}).values()
        return {(each.plural, each.name, _identity(each)[0]) for each in kept}


def _identity(kept: Kept) -> tuple[str, bool]:
    """Its uid, and whether it is being deleted."""
    if kept.pod is not None:
        return kept.pod.uid, kept.pod.terminating
    metadata = _body(kept)["metadata"]
    return metadata["uid"], "deletionTimestamp" in metadata


def _unpacked(kept: Kept) -> Object:
    found, status = _body(kept), orjson.loads(kept.status)
    found["metadata"]["resourceVersion"] = kept.version
    return found if status is None else {**found, "status": status}


def _body(kept: Kept) -> Object:
    found: Object = orjson.loads(zlib.decompress(kept.packed))
    return found
