"""The environment of a worker pod: names, mounted files, ports, routes and exit codes."""

from enum import IntEnum

# The operator writes these into every worker container.
CONFIG = "ROLLCALL_CONFIG"  # JobConfig as JSON
POOL_CONFIG = "ROLLCALL_POOL_CONFIG"  # PoolConfig as JSON; rollouts only
REFERENCE_CONFIG = "ROLLCALL_REFERENCE_CONFIG"  # ReferencePodConfig as JSON; reference pods only
FRONT_CONFIG = "ROLLCALL_FRONT_CONFIG"  # FrontConfig as JSON; fronts only
API_KEYS_DIR = "ROLLCALL_API_KEYS_DIR"  # a folder: the mounted Secret with the front's API keys
COORDINATOR = "ROLLCALL_COORDINATOR"  # DNS name of trainer rank 0
# Outside of pods, where processes share an address: the coordinator's port (for itself 0: a free
# one). All other listeners then take free ports.
COORDINATOR_PORT = "ROLLCALL_COORDINATOR_PORT"
POD_NAME = "ROLLCALL_POD_NAME"  # downward API
POD_UID = "ROLLCALL_POD_UID"  # downward API
POD_IP = "ROLLCALL_POD_IP"  # downward API
TOKEN_DIR = "ROLLCALL_TOKEN_DIR"  # noqa: S105 - a folder: the pod's own tokens
TRUST_DIR = "ROLLCALL_TRUST_DIR"  # a folder: the mounted ConfigMap with the cluster's public keys
TLS_DIR = "ROLLCALL_TLS_DIR"  # a folder: the mounted Secret with a server's certificate and key
STATE_DIR = "ROLLCALL_STATE_DIR"  # emptyDir that outlives a container restart (boot counter)

# In a trainer pod of several processes `rollcall-trainer` writes these for each of them.
LOCAL_RANK = "ROLLCALL_LOCAL_RANK"  # number of the process in its pod, from 0
EXIT_MESSAGE = "ROLLCALL_EXIT_MESSAGE"  # file that takes the place of TERMINATION_LOG
# A local run writes this: there is no image, and the machine's torch may be built for a device that
# the machine lacks.
LOCAL = "ROLLCALL_LOCAL"

TOKEN_FILE = "token"  # noqa: S105 - of trainers and rollouts, for the coordinator
REFERENCE_TOKEN_FILE = "reference-token"  # noqa: S105 - of trainers, for reference pods
TRUST_FILE = "trust.json"  # TrustBundle as JSON
TLS_CERTIFICATE, TLS_KEY = "tls.crt", "tls.key"  # of a Secret of type kubernetes.io/tls, PEM
API_KEYS_FILE = "api-keys"  # one key a line
TERMINATION_LOG = "/dev/termination-log"  # why a container exited; shown in the job's conditions

READINESS_GATE = "rollcall.dev/weights-in-sync"

# Ports of worker pods.
MEMBERSHIP_PORT = 7070  # coordinator: operator and members
COMPLETIONS_PORT = 7071  # coordinator: completions, apart from membership and weight updates
AGENT_PORT = 7072  # rollout: weights for peers, drain, reconnect requests
RENDEZVOUS_PORT = 7073  # trainer rank 0: the training engine's own process group
REFERENCE_PORT = 7074  # reference pod: log-probabilities for the trainer
FRONT_PORT = 7075  # front: agents, in the form of OpenAI's API
MASTER_PORT = 29500  # External trainer, rank 0: where torchrun's processes meet, by its default
METRICS_PORT = 9090  # every pod: /metrics, /healthz, /readyz

MAX_PROCESSES = 64  # in a trainer pod, one rank each
PARTS_PORT = 7100  # and above: weights of a trainer pod's ranks, never by TLS


# Routes. Who may use each one is in `rollcall_runtime.worker.identity.roles`.
ROSTER_ROUTE = "/v1/roster"  # PUT
OPERATOR_STREAM_ROUTE = "/v1/operator/stream"  # GET: one JSON object a line
MEMBER_STREAM_ROUTE = "/v1/members/stream"  # WebSocket
COMPLETIONS_ROUTE = "/v1/completions"  # POST
WEIGHTS_ROUTE = "/v1/weights"  # GET: one version whole, for a newcomer
REGISTER_ROUTE = "/v1/register"  # POST: open another stream
GANG_ROUTE = "/v1/gang"  # WebSocket: heartbeats between the trainer's ranks
LOGPROBS_ROUTE = "/v1/logprobs"  # POST: safetensors in both directions
DRAIN_ROUTE = "/v1/drain"  # POST
GENERATE_ROUTE = "/v1/generate"  # POST: tokens in, tokens out, one JSON object a line
TRAJECTORIES_ROUTE = "/v1/trajectories"  # POST: from the front to the coordinator
TURNS_ROUTE = "/v1/trajectories/turns"  # GET, POST, DELETE: what the coordinator keeps for fronts
FRONT_STREAM_ROUTE = "/v1/front/stream"  # GET: the serving rollouts, one JSON object a line

# The operator sends its token as `Authorization: Bearer ...` and, without a prefix, in this header:
# an API server's pod proxy removes Authorization. The coordinator takes either.
OPERATOR_TOKEN_HEADER = "X-Rollcall-Token"  # noqa: S105 - a header's name
# A newcomer shows a donor the coordinator's ticket for one version, and no token.
TICKET_HEADER = "X-Rollcall-Ticket"


class ExitCode(IntEnum):
    """Exit codes of worker containers; documented for `failurePolicy.rules`."""

    OK = 0
    FAILED = 1  # a fault worth a restart
    BAD_CONFIG = 64  # the spec must be changed: the job fails at once
    FENCED = 65  # another coordinator took over
    OUT_OF_MEMORY = 66  # of the device or of the host; a restart may have shorter samples


def weights_port(local_rank: int) -> int:
    """Where a trainer rank serves its weights: its pod's ranks share an address."""
    return PARTS_PORT + local_rank


def audience(job_uid: str) -> str:
    """The audience of tokens for the coordinator of one job."""
    return f"rollcall.dev/{job_uid}"


def reference_audience(job_uid: str) -> str:
    """The audience of tokens for a job's reference pods, which open no other endpoint."""
    return f"{audience(job_uid)}/reference"


def front_pod(job: str, ordinal: int) -> str:
    """Name of a pod of the front's StatefulSet."""
    return f"{job}-front-{ordinal}"


def trainer_pod(job: str, ordinal: int) -> str:
    """Name of a pod of the trainer's StatefulSet."""
    return f"{job}-trainer-{ordinal}"
