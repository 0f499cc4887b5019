"""Reads what the operator gives a worker container: environment variables and mounted files.

Any fault is a SpecError that names the variable or file: a restart does not help.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rollcall_protocol import pod_contract
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.job_config import JobConfig, PoolConfig, ReferencePodConfig
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.json_codec import CodecError, decode
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.identity.own_tokens import TokenFile, TokenSource
from rollcall_runtime.worker.identity.tls import ServerCertificate, TlsContext
from rollcall_runtime.worker.identity.token_verifier import TokenVerifier
from rollcall_runtime.worker.identity.trust_file import TrustFile

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod that this process runs in; listeners bind to `address`, its IP."""

    name: str
    uid: str
    address: str


@dataclass(frozen=True, slots=True)
class RolloutEnvironment:
    """The configuration of a rollout. `coordinator` is the host name of trainer rank 0.

    `coordinator_port`: None in pods, whose ports are fixed; elsewhere a rollout takes free ports.
    """

    job: JobConfig
    pool: PoolConfig
    pod: Pod
    coordinator: str
    token: TokenSource
    trust: TrustFile
    state_dir: Path
    coordinator_port: int | None = None

    def coordinator_url(self, port: int, route: str) -> str:
        """The URL of a route of the coordinator."""
        if port == pod_contract.MEMBERSHIP_PORT and self.coordinator_port is not None:
            port = self.coordinator_port
        return _url(self.job, self.coordinator, port, route)

    def own_port(self, port: int) -> int:
        """Where this process listens that would listen at `port` in a pod; 0 for a free one."""
        return port if self.coordinator_port is None else 0

    def verifier(self) -> TokenVerifier:
        """Checks tokens that are shown to members of this job."""
        return _verifier(self.trust, self.job, pod_contract.audience(self.job.uid))


@dataclass(frozen=True, slots=True)
class TrainerEnvironment:
    """The configuration of a trainer rank.

    `rank` follows from the pod's ordinal in its StatefulSet and from `local_rank`, the number of
    the process in its pod. `starts_ranks`: this process is none of the pod's ranks, but starts
    them; `rank` is then that of the first. `reference_token`: for a reference in pods of its own.
    `certificate`: of the coordinator, if its endpoints speak TLS. `coordinator_port`: None in pods,
    whose ports are fixed; elsewhere the coordinator's, 0 for a free one.
    """

    job: JobConfig
    pod: Pod
    coordinator: str
    token: TokenSource
    trust: TrustFile
    state_dir: Path
    rank: int
    local_rank: int = 0
    starts_ranks: bool = False
    reference_token: TokenSource | None = None
    certificate: TlsContext | None = None
    coordinator_port: int | None = None

    def coordinator_url(self, port: int, route: str) -> str:
        """The URL of a route of the coordinator."""
        return _url(self.job, self.coordinator, port, route)

    def own_port(self, port: int) -> int:
        """Where this process listens that would listen at `port` in a pod; 0 for a free one."""
        return port if self.coordinator_port is None else 0

    def verifier(self) -> TokenVerifier:
        """Checks tokens that are shown to members of this job; one for each thread."""
        return _verifier(self.trust, self.job, pod_contract.audience(self.job.uid))


@dataclass(frozen=True, slots=True)
class ReferenceEnvironment:
    """The configuration of a pod that holds the reference. `certificate`: if it speaks TLS."""

    job: JobConfig
    pods: ReferencePodConfig
    pod: Pod
    trust: TrustFile
    certificate: TlsContext | None = None

    def verifier(self) -> TokenVerifier:
        """Checks the trainer's tokens for reference pods."""
        return _verifier(self.trust, self.job, pod_contract.reference_audience(self.job.uid))


@dataclass(frozen=True, slots=True)
class FrontEnvironment:
    """The configuration of a pod of the front.

    `coordinator` is the host name of trainer rank 0. `keys_file` has the API keys, None if the
    front asks for none. `certificate`: if it speaks TLS.
    """

    job: JobConfig
    front: FrontConfig
    pod: Pod
    coordinator: str
    token: TokenSource
    trust: TrustFile
    keys_file: Path | None = None
    certificate: TlsContext | None = None

    def coordinator_url(self, port: int, route: str) -> str:
        """The URL of a route of the coordinator."""
        return _url(self.job, self.coordinator, port, route)


def read_rollout(variables: Mapping[str, str]) -> RolloutEnvironment:
    """A rollout's environment; SpecError names what is missing or does not parse."""
    return RolloutEnvironment(
        job=read_config(JobConfig, variables, pod_contract.CONFIG),
        pool=read_config(PoolConfig, variables, pod_contract.POOL_CONFIG),
        pod=_pod(variables),
        coordinator=_required(variables, pod_contract.COORDINATOR),
        token=_token(variables, pod_contract.TOKEN_FILE),
        trust=_trust(variables),
        state_dir=_folder(variables, pod_contract.STATE_DIR),
        coordinator_port=_coordinator_port(variables),
    )


def read_trainer(variables: Mapping[str, str]) -> TrainerEnvironment:
    """A trainer rank's environment; SpecError names what is missing or does not parse."""
    job = read_config(JobConfig, variables, pod_contract.CONFIG)
    pod = _pod(variables)
    local_rank = _local_rank(variables, job.trainer_processes)
    ordinal = _ordinal(pod.name, job.trainer_replicas)
    return TrainerEnvironment(
        job=job,
        pod=pod,
        coordinator=_required(variables, pod_contract.COORDINATOR),
        token=_token(variables, pod_contract.TOKEN_FILE),
        trust=_trust(variables),
        state_dir=_folder(variables, pod_contract.STATE_DIR),
        rank=ordinal * job.trainer_processes + local_rank,
        local_rank=local_rank,
        starts_ranks=job.trainer_processes > 1 and pod_contract.LOCAL_RANK not in variables,
        reference_token=_token(variables, pod_contract.REFERENCE_TOKEN_FILE)
        if job.reference.host
        else None,
        certificate=_certificate(variables, job),
        coordinator_port=_coordinator_port(variables),
    )


def read_reference(variables: Mapping[str, str]) -> ReferenceEnvironment:
    """A reference pod's environment; SpecError names what is missing or does not parse."""
    job = read_config(JobConfig, variables, pod_contract.CONFIG)
    return ReferenceEnvironment(
        job=job,
        pods=read_config(ReferencePodConfig, variables, pod_contract.REFERENCE_CONFIG),
        pod=_pod(variables),
        trust=_trust(variables),
        certificate=_certificate(variables, job),
    )


def read_front(variables: Mapping[str, str]) -> FrontEnvironment:
    """The environment of a pod of the front; SpecError names what is missing or does not parse."""
    front = read_config(FrontConfig, variables, pod_contract.FRONT_CONFIG)
    keys = None
    if not front.without_keys:
        keys = _folder(variables, pod_contract.API_KEYS_DIR) / pod_contract.API_KEYS_FILE
    certificate = None
    if variables.get(pod_contract.TLS_DIR):
        certificate = ServerCertificate(_folder(variables, pod_contract.TLS_DIR)).context
    return FrontEnvironment(
        job=read_config(JobConfig, variables, pod_contract.CONFIG),
        front=front,
        pod=_pod(variables),
        coordinator=_required(variables, pod_contract.COORDINATOR),
        token=_token(variables, pod_contract.TOKEN_FILE),
        trust=_trust(variables),
        keys_file=keys,
        certificate=certificate,
    )


def new_member(pod: Pod) -> MemberId:
    """A new member identity: each start of the container is another member."""
    return MemberId(pod.uid, secrets.token_hex(8))


def _pod(variables: Mapping[str, str]) -> Pod:
    return Pod(
        name=_required(variables, pod_contract.POD_NAME),
        uid=_required(variables, pod_contract.POD_UID),
        address=_required(variables, pod_contract.POD_IP),
    )


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(name, "")
    if not value:
        raise SpecError(name, "is not set; the operator writes it into every worker container")
    return value


def read_config(cls: type[T], variables: Mapping[str, str], name: str) -> T:
    """The configuration that a variable holds as JSON; SpecError."""
    try:
        return decode(cls, json.loads(_required(variables, name)))
    except (CodecError, json.JSONDecodeError) as error:
        problem = f"{error}; operator and image must be of the same release"
        raise SpecError(name, problem) from error


def _folder(variables: Mapping[str, str], name: str) -> Path:
    path = Path(_required(variables, name))
    if not path.is_dir():
        raise SpecError(name, f"{str(path)!r} is not a folder; is the volume mounted?")
    return path


def _token(variables: Mapping[str, str], name: str) -> TokenFile:
    return TokenFile(_folder(variables, pod_contract.TOKEN_DIR) / name)


def _trust(variables: Mapping[str, str]) -> TrustFile:
    return TrustFile(_folder(variables, pod_contract.TRUST_DIR) / pod_contract.TRUST_FILE)


def _certificate(variables: Mapping[str, str], job: JobConfig) -> TlsContext | None:
    if not job.tls:
        return None
    return ServerCertificate(_folder(variables, pod_contract.TLS_DIR)).context


def _url(job: JobConfig, host: str, port: int, route: str) -> str:
    scheme = "https" if job.tls else "http"
    return f"{scheme}://{host_port(host, port)}{route}"


def _verifier(trust: TrustFile, job: JobConfig, audience: str) -> TokenVerifier:
    return TokenVerifier(trust, audience=audience, namespace=job.namespace)


def _ordinal(pod_name: str, replicas: int) -> int:
    ordinal = pod_name.rpartition("-")[2]
    if not ordinal.isdecimal() or int(ordinal) >= replicas:
        problem = f"{pod_name!r} does not end in an ordinal below {replicas} (trainer replicas)"
        raise SpecError(pod_contract.POD_NAME, problem)
    return int(ordinal)


def _coordinator_port(variables: Mapping[str, str]) -> int | None:
    text = variables.get(pod_contract.COORDINATOR_PORT, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) >= 2**16:
        raise SpecError(pod_contract.COORDINATOR_PORT, f"{text!r} is not a number below 65536")
    return int(text)


def _local_rank(variables: Mapping[str, str], processes: int) -> int:
    text = variables.get(pod_contract.LOCAL_RANK, "0")
    if not text.isdecimal() or int(text) >= processes:
        problem = f"{text!r} is not a number below {processes} (processes of a trainer pod)"
        raise SpecError(pod_contract.LOCAL_RANK, problem)
    return int(text)
