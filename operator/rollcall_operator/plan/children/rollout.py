"""RolloutPools that a job owns, and the Deployment of each pool."""

import copy
from math import ceil

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec, RolloutSpec
from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.plan.children import worker_config
from rollcall_operator.plan.children.child_objects import (
    child_metadata,
    common_labels,
    owner,
    worker_deployment,
)
from rollcall_operator.plan.children.pod_template import (
    STARTUP_SECONDS,
    WorkerAdditions,
    common_volumes,
    token_volume,
    worker_template,
)
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.rollout_settings import is_server, server_settings
from rollcall_protocol import pod_contract

GRACE_BEYOND_DRAIN = 10
"""Seconds between the end of draining and the kill."""
BEYOND_SERVERS_START = 60
"""Seconds that a rollout has for its own start before, and to say why its server's failed after."""


def is_owned(pool: Manifest, job_uid: str) -> bool:
    """Whether the job made this pool."""
    references = pool["metadata"].get("ownerReferences") or ()
    return any(reference.get("uid") == job_uid for reference in references)


def pool(job: Manifest, rollout: RolloutSpec, live: Manifest | None) -> Manifest:
    """The RolloutPool of one entry of `spec.rollouts`.

    Replicas are the job's when the pool is made and when the job's number changes. Otherwise the
    live number stays: it may be an autoscaler's. The resourceVersion then guards against writing
    back a number that has just been changed.
    """
    name = job["metadata"]["name"]
    metadata = child_metadata(job, labels.pool_name(name, rollout.name), labels.ROLLOUT)
    metadata["annotations"] = {labels.JOB_REPLICAS: str(rollout.replicas)}
    replicas = rollout.replicas
    if live is not None:
        recorded = (live["metadata"].get("annotations") or {}).get(labels.JOB_REPLICAS)
        if recorded == str(rollout.replicas):
            replicas = live["spec"].get("replicas", replicas)
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
    body = rollout.model_dump(by_alias=True, exclude_none=True, exclude={"name"})
    return {
        "apiVersion": labels.API_VERSION,
        "kind": "RolloutPool",
        "metadata": metadata,
        "spec": {"jobRef": {"name": name}, **body, "replicas": replicas},
    }


def deployment(
    job: Manifest, spec: RLJobSpec, pool: Manifest, pool_spec: RolloutPoolSpec, *, replicas: int
) -> Manifest:
    """The Deployment of a pool. Nothing in its template changes while the job runs."""
    metadata = job["metadata"]
    name, pool_name = metadata["name"], pool["metadata"]["name"]
    own_labels = {**common_labels(name, labels.ROLLOUT), labels.POOL: pool_name}
    extras = _extras(job, spec, pool_spec, pool_name=pool_name)
    return worker_deployment(
        {
            "name": pool_name,
            "namespace": metadata["namespace"],
            "labels": own_labels,
            "ownerReferences": owner(pool),
        },
        selector=selector(name, pool_name),
        replicas=replicas,
        template=worker_template(pool_spec.template, extras),
    )


def scaled_to_zero(live: Manifest) -> Manifest | None:
    """A Deployment whose job does not exist, with 0 replicas; None when it has 0 already."""
    if live["spec"].get("replicas", 1) == 0:
        return None
    metadata = live["metadata"]
    kept = ("name", "namespace", "labels", "ownerReferences", "resourceVersion")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {**copy.deepcopy(live["spec"]), "replicas": 0},
    }


def selector(job: str, pool_name: str) -> dict[str, str]:
    """Labels that select the pods of a pool."""
    return {labels.JOB: job, labels.ROLE: labels.ROLLOUT, labels.POOL: pool_name}


def _extras(
    job: Manifest, spec: RLJobSpec, pool_spec: RolloutPoolSpec, *, pool_name: str
) -> WorkerAdditions:
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    settings = worker_config.job_config(
        spec, namespace=namespace, name=name, uid=job["metadata"]["uid"]
    )
    volumes, mounts = common_volumes(name)
    audience = pod_contract.audience(job["metadata"]["uid"])
    token, token_mount = token_volume({pod_contract.TOKEN_FILE: audience})
    return WorkerAdditions(
        role=labels.ROLLOUT,
        job_uid=job["metadata"]["uid"],
        labels={**common_labels(name, labels.ROLLOUT), labels.POOL: pool_name},
        command="rollcall-rollout",
        env=(
            (pod_contract.CONFIG, worker_config.as_json(settings)),
            (
                pod_contract.POOL_CONFIG,
                worker_config.as_json(worker_config.pool_config(pool_spec, name=pool_name)),
            ),
            (pod_contract.COORDINATOR, labels.coordinator_host(name, namespace)),
        ),
        ports=(("agent", pod_contract.AGENT_PORT), ("metrics", pod_contract.METRICS_PORT)),
        volumes=(token, *volumes),
        mounts=(token_mount, *mounts),
        grace_seconds=pool_spec.drain.timeout_seconds + GRACE_BEYOND_DRAIN,
        readiness_gate=pod_contract.READINESS_GATE,
        shared_memory=is_server(pool_spec.engine.name),
        startup_seconds=_startup_seconds(pool_spec),
    )


def _startup_seconds(pool_spec: RolloutPoolSpec) -> int:
    engine = pool_spec.engine
    if not is_server(engine.name):
        return STARTUP_SECONDS
    return ceil(server_settings(engine.name, engine.config).start_seconds) + BEYOND_SERVERS_START
