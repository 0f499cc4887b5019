"""Pods of its own for the reference: a headless Service and a Deployment. No roster names them."""

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.children import worker_config
from rollcall_operator.plan.children.child_objects import (
    child_metadata,
    common_labels,
    headless_service,
    pod_selector,
    worker_deployment,
)
from rollcall_operator.plan.children.pod_template import (
    WorkerAdditions,
    certificate_volume,
    common_volumes,
    worker_template,
)
from rollcall_operator.plan.model import Manifest
from rollcall_protocol import pod_contract

_PORTS = (
    ("reference", pod_contract.REFERENCE_PORT),
    ("metrics", pod_contract.METRICS_PORT),
)
GRACE_SECONDS = 40
"""From SIGTERM to the kill: for a request that is being answered."""


def service(job: Manifest) -> Manifest:
    """Headless Service, whose name leads to the pods that can answer."""
    selector = pod_selector(job, labels.REFERENCE)
    return headless_service(_metadata(job), selector=selector, ports=_PORTS, also_not_ready=False)


def deployment(job: Manifest, spec: RLJobSpec, template: Manifest, *, replicas: int) -> Manifest:
    """The Deployment of the pods; `template` is spec.reference's."""
    return worker_deployment(
        _metadata(job),
        selector=pod_selector(job, labels.REFERENCE),
        replicas=replicas,
        template=worker_template(template, _extras(job, spec, template)),
    )


def _metadata(job: Manifest) -> Manifest:
    return child_metadata(job, labels.reference_name(job["metadata"]["name"]), labels.REFERENCE)


def _extras(job: Manifest, spec: RLJobSpec, template: Manifest) -> WorkerAdditions:
    metadata = job["metadata"]
    name, uid = metadata["name"], metadata["uid"]
    settings = worker_config.job_config(spec, namespace=metadata["namespace"], name=name, uid=uid)
    own = worker_config.reference_pod_config(spec.reference, template)
    volumes, mounts = common_volumes(name)  # it opens no connections, so it has no token
    for volume, mount in certificate_volume(spec, labels.reference_name(name)):
        volumes, mounts = (*volumes, volume), (*mounts, mount)
    return WorkerAdditions(
        role=labels.REFERENCE,
        job_uid=uid,
        labels=common_labels(name, labels.REFERENCE),
        command="rollcall-reference",
        env=(
            (pod_contract.CONFIG, worker_config.as_json(settings)),
            (pod_contract.REFERENCE_CONFIG, worker_config.as_json(own)),
        ),
        ports=_PORTS,
        volumes=volumes,
        mounts=mounts,
        grace_seconds=GRACE_SECONDS,
    )
