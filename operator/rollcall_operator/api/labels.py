"""Names that Rollcall puts on objects: group, labels, annotations, children."""

GROUP = "rollcall.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "rollcall-operator"

JOB = "rollcall.dev/job"
ROLE = "rollcall.dev/role"
POOL = "rollcall.dev/pool"
NAME = "app.kubernetes.io/name"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"

TRAINER = "trainer"
ROLLOUT = "rollout"
REFERENCE = "reference"
FRONT = "front"

WORKER_USER = "rollcall.dev/worker-user"
"""On a trainer's StatefulSet: the default user of the job's workers, until the job restarts."""
JOB_REPLICAS = "rollcall.dev/job-replicas"
"""On an owned pool: the last number of replicas that came from the job."""
WORKER_CONTAINER = "rollcall.dev/worker-container"
"""On a pod: which of its containers is the worker."""
JOB_UID = "rollcall.dev/job-uid"
"""On a pod: the job that it was made for; another job may take the name later."""

RESTART_TRAINER = "rollcall.dev/restart-trainer"
"""On an RLJob, set by the user: a new value restarts the trainer's pods from the last checkpoint.
On a trainer pod: the value that it was made for."""
ROLLOUT_RESTART = "kubectl.kubernetes.io/restartedAt"
"""On a StatefulSet's pod template and its pods, set by `kubectl rollout restart`."""
RESTART_REQUESTS = (RESTART_TRAINER, ROLLOUT_RESTART)
ADOPT_CHILDREN = "rollcall.dev/adopt-children"
"""On an RLJob, set by the user to "true": objects of an earlier job of the same name become its."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""On a pod: of a ReplicaSet's pods that are alike, those with the lowest number go first."""

GROUP_DEFAULT = "default"
"""The sync group of a job."""


def trainer_name(job: str) -> str:
    """Name of the trainer's StatefulSet and headless Service."""
    return f"{job}-trainer"


def reference_name(job: str) -> str:
    """Name of the Deployment and headless Service of a job's reference pods."""
    return f"{job}-reference"


def front_name(job: str) -> str:
    """Name of the StatefulSet and Service of a job's front."""
    return f"{job}-front"


def reference_host(job: str, namespace: str) -> str:
    """DNS name of the reference pods that are ready."""
    return f"{reference_name(job)}.{namespace}.svc"


def trust_name(job: str) -> str:
    """Name of the ConfigMap with the cluster's public keys, by which workers check tokens."""
    return f"{job}-rollcall-trust"


def certificate_name(child: str) -> str:
    """Name of the Secret with the certificate of the pods of a StatefulSet or Deployment."""
    return f"{child}-tls"


def pool_name(job: str, rollout: str) -> str:
    """Name of the RolloutPool (and Deployment) of one entry of `spec.rollouts`."""
    return f"{job}-{rollout}"


def coordinator_pod(job: str) -> str:
    """Name of the pod of trainer rank 0."""
    return f"{trainer_name(job)}-0"


def coordinator_host(job: str, namespace: str) -> str:
    """DNS name of the coordinator, for the operator and the workers."""
    return f"{coordinator_pod(job)}.{trainer_name(job)}.{namespace}.svc"
