"""The front's children: a headless Service and a StatefulSet, whose pods have names that the
coordinator knows.
"""

from rollcall_operator.api import labels
from rollcall_operator.api.front import FrontSpec
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.children import worker_config
from rollcall_operator.plan.children.child_objects import (
    child_metadata,
    common_labels,
    headless_service,
    pod_selector,
)
from rollcall_operator.plan.children.pod_template import (
    API_KEYS_PATH,
    API_KEYS_VOLUME,
    TLS_PATH,
    TLS_VOLUME,
    WorkerAdditions,
    common_volumes,
    token_volume,
    worker_template,
)
from rollcall_operator.plan.model import Manifest
from rollcall_protocol import pod_contract

_PORTS = (("front", pod_contract.FRONT_PORT), ("metrics", pod_contract.METRICS_PORT))
GRACE_SECONDS = 40
"""From SIGTERM to the kill: for requests that are being answered."""


def service(job: Manifest) -> Manifest:
    """Headless Service, whose name leads to the pods that know a rollout."""
    selector = pod_selector(job, labels.FRONT)
    return headless_service(_metadata(job), selector=selector, ports=_PORTS, also_not_ready=False)


def stateful_set(job: Manifest, spec: RLJobSpec, front: FrontSpec, *, replicas: int) -> Manifest:
    """The pods, which are replaced one by one when their template changes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(job),
        "spec": {
            "replicas": replicas,
            "serviceName": labels.front_name(job["metadata"]["name"]),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": pod_selector(job, labels.FRONT)},
            "template": worker_template(front.template, _extras(job, spec, front)),
        },
    }


def _metadata(job: Manifest) -> Manifest:
    return child_metadata(job, labels.front_name(job["metadata"]["name"]), labels.FRONT)


def _extras(job: Manifest, spec: RLJobSpec, front: FrontSpec) -> WorkerAdditions:
    metadata = job["metadata"]
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    settings = worker_config.job_config(spec, namespace=namespace, name=name, uid=uid)
    volumes, mounts = common_volumes(name)
    token, token_mount = token_volume({pod_contract.TOKEN_FILE: pod_contract.audience(uid)})
    volumes, mounts = (token, *volumes), (token_mount, *mounts)
    for volume, secret, path in (
        (API_KEYS_VOLUME, front.api_keys_secret, API_KEYS_PATH),
        (TLS_VOLUME, front.tls_secret, TLS_PATH),
    ):
        if secret is not None:
            volumes = (*volumes, {"name": volume, "secret": {"secretName": secret}})
            mounts = (*mounts, {"name": volume, "mountPath": path, "readOnly": True})
    own = worker_config.as_json(worker_config.front_config(front))
    return WorkerAdditions(
        role=labels.FRONT,
        job_uid=uid,
        labels=common_labels(name, labels.FRONT),
        command="rollcall-front",
        env=(
            (pod_contract.CONFIG, worker_config.as_json(settings)),
            (pod_contract.FRONT_CONFIG, own),
            (pod_contract.API_KEYS_DIR, API_KEYS_PATH),
            (pod_contract.COORDINATOR, labels.coordinator_host(name, namespace)),
        ),
        ports=_PORTS,
        volumes=volumes,
        mounts=mounts,
        grace_seconds=GRACE_SECONDS,
    )
