"""The trainer's children: the headless Service, the StatefulSet."""

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan.children import worker_config
from rollcall_operator.plan.children.child_objects import (
    child_metadata,
    common_labels,
    headless_service,
    pod_selector,
)
from rollcall_operator.plan.children.pod_template import (
    CHECKPOINT_VOLUME,
    STARTUP_SECONDS,
    WorkerAdditions,
    certificate_volume,
    common_volumes,
    field_variable,
    token_volume,
    variable,
    worker_template,
)
from rollcall_operator.plan.children.trainer_ranks import processes_per_pod
from rollcall_operator.plan.model import Manifest
from rollcall_protocol import pod_contract

_PORTS = (
    ("membership", pod_contract.MEMBERSHIP_PORT),
    ("completions", pod_contract.COMPLETIONS_PORT),
    ("rendezvous", pod_contract.RENDEZVOUS_PORT),
    ("metrics", pod_contract.METRICS_PORT),
)
_POD_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
"""The number in the pod's name; a StatefulSet sets it."""


def service(job: Manifest) -> Manifest:
    """Headless Service: DNS names for trainer pods, also before they are ready."""
    selector = pod_selector(job, labels.TRAINER)
    return headless_service(_metadata(job), selector=selector, ports=_PORTS, also_not_ready=True)


def stateful_set(
    job: Manifest, spec: RLJobSpec, *, replicas: int, restart_request: str = ""
) -> Manifest:
    """The gang of trainer pods.

    OnDelete: a new template never restarts a running trainer; it applies to the next pods.
    `restart_request` is the value of RESTART_TRAINER that they are made for, empty for none.
    """
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    template = worker_template(
        spec.trainer.template, _extras(job, spec, name=name, namespace=namespace)
    )
    if restart_request:
        template["metadata"]["annotations"][labels.RESTART_TRAINER] = restart_request
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(job),
        "spec": {
            "replicas": replicas,
            "serviceName": labels.trainer_name(name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": pod_selector(job, labels.TRAINER)},
            "template": template,
        },
    }


def _metadata(job: Manifest) -> Manifest:
    return child_metadata(job, labels.trainer_name(job["metadata"]["name"]), labels.TRAINER)


def _extras(job: Manifest, spec: RLJobSpec, *, name: str, namespace: str) -> WorkerAdditions:
    settings = worker_config.job_config(
        spec, namespace=namespace, name=name, uid=job["metadata"]["uid"]
    )
    volumes, mounts = common_volumes(name)
    token, token_mount = token_volume(_audiences(job, spec))
    volumes, mounts = (token, *volumes), (token_mount, *mounts)
    for volume, mount in certificate_volume(spec, labels.trainer_name(name)):
        volumes, mounts = (*volumes, volume), (*mounts, mount)
    if spec.trainer.checkpoint:
        stored = spec.trainer.checkpoint.volume.model_dump(by_alias=True, exclude_none=True)
        volumes = (*volumes, {"name": CHECKPOINT_VOLUME, **stored})
        mounts = (*mounts, {"name": CHECKPOINT_VOLUME, "mountPath": worker_config.CHECKPOINT_PATH})
    return WorkerAdditions(
        role=labels.TRAINER,
        job_uid=job["metadata"]["uid"],
        labels=common_labels(name, labels.TRAINER),
        command="" if spec.trainer.external else "rollcall-trainer",
        env=(
            (pod_contract.CONFIG, worker_config.as_json(settings)),
            (pod_contract.COORDINATOR, labels.coordinator_host(name, namespace)),
        ),
        ports=_PORTS,
        volumes=volumes,
        mounts=mounts,
        shared_memory=_shares_memory(spec.trainer),
        startup_seconds=spec.trainer.start_timeout_seconds
        if spec.trainer.external
        else STARTUP_SECONDS,
        usual_env=_launcher_variables(spec.trainer, labels.coordinator_host(name, namespace))
        if spec.trainer.external
        else (),
    )


def _shares_memory(trainer: TrainerSpec) -> bool:
    """NCCL and HCCL move data between the processes of a pod through it."""
    return (trainer.external or processes_per_pod(trainer) > 1) and trainer.device != "cpu"


def _launcher_variables(trainer: TrainerSpec, host: str) -> tuple[Manifest, ...]:
    """What torchrun and accelerate read of a pod's place among the trainer's, as Kubeflow's
    PyTorchJob names it; torchrun itself reads its options under PET_.
    """
    values = (
        ("MASTER_ADDR", host),
        ("MASTER_PORT", str(pod_contract.MASTER_PORT)),
        ("NNODES", str(trainer.replicas)),
    )
    found: list[Manifest] = []
    for prefix in ("", "PET_"):
        found += [variable(prefix + name, value) for name, value in values]
        found.append(field_variable(f"{prefix}NODE_RANK", _POD_INDEX))
    return tuple(found)


def _audiences(job: Manifest, spec: RLJobSpec) -> dict[str, str]:
    """What the ranks show to reference pods could otherwise be used in their name at rank 0."""
    uid = job["metadata"]["uid"]
    audiences = {pod_contract.TOKEN_FILE: pod_contract.audience(uid)}
    if spec.reference.template is not None:
        audiences[pod_contract.REFERENCE_TOKEN_FILE] = pod_contract.reference_audience(uid)
    return audiences
