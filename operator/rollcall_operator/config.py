"""Settings of the operator process: flags, each with an environment variable of the same name."""

import argparse
import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollcall_operator.plan.membership.nodes import PREEMPTION_TAINTS
from rollcall_operator.plan.model import Manifest

ENV_PREFIX = "ROLLCALL_OPERATOR_"

REACHES = ("auto", "direct", "proxy")


class SettingsError(ValueError):
    """A flag or environment variable has a value that cannot be used; the message names it."""


def _identity() -> str:
    return f"{os.environ.get('HOSTNAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one operator process. Times are seconds.

    namespaces: those it serves; empty means all of the cluster.
    lease_namespace: empty takes the namespace of the pod or of the kubeconfig's context.
    preemption_taints: keys of taints that announce that a node will terminate.
    http_host: address of probes and metrics; empty means all addresses, IPv4 and IPv6.
    reach: how coordinators are reached; auto is direct inside the cluster, else the pod proxy.
    drain: how long running reconciles may take to end at shutdown.
    service_account: whose tokens coordinators are shown, as namespace/name; empty: the operator's.
    operator_peers: where its connections to coordinators come from, as NetworkPolicyPeers; None:
        not known.
    monitoring_peers: who may read the metrics of jobs' pods, as NetworkPolicyPeers.
    worker_user: the user id of workers whose template names none; None: their images'.
    """

    namespaces: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None
    leader_elect: bool = True
    lease_namespace: str = ""
    lease_name: str = "rollcall-operator"
    lease_duration: int = 15
    identity: str = field(default_factory=_identity)
    workers: int = 10
    http_host: str = ""
    http_port: int = 8080
    reach: str = "auto"
    request_timeout: float = 15.0
    drain: float = 10.0
    service_account: str = ""
    preemption_taints: tuple[str, ...] = PREEMPTION_TAINTS
    operator_peers: tuple[Manifest, ...] | None = None
    monitoring_peers: tuple[Manifest, ...] = ()
    worker_user: int | None = None
    log_level: str = "info"
    log_format: str = "json"

    def __post_init__(self) -> None:
        if self.reach not in REACHES:
            raise SettingsError(f"--reach: {self.reach!r} is not one of {', '.join(REACHES)}")
        if self.log_format not in {"json", "text"}:
            raise SettingsError(f"--log-format: {self.log_format!r} is not json or text")
        if self.log_level.lower() not in {"debug", "info", "warning", "error"}:
            raise SettingsError(
                f"--log-level: {self.log_level!r} is not debug, info, warning or error"
            )
        if self.workers < 1:
            raise SettingsError(f"--workers: must be at least 1, not {self.workers}")
        if self.worker_user is not None and self.worker_user < 1:
            raise SettingsError(f"--worker-user: must be above 0, not {self.worker_user}")
        if self.lease_duration < 6:
            raise SettingsError(
                f"--lease-duration: must be at least 6 seconds, not {self.lease_duration}"
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `rollcall-operator run`."""
    add = parser.add_argument
    parser.description = (
        f"Run the operator. Each flag can also be set as {ENV_PREFIX}<FLAG>, with underscores."
    )
    add(
        "--namespace",
        dest="namespaces",
        action="append",
        metavar="NS",
        help="namespace to serve; may be repeated (default: all namespaces)",
    )
    add("--kubeconfig", help="kubeconfig file (default: KUBECONFIG, or the pod's service account)")
    add("--context", help="context of the kubeconfig (default: its current context)")
    add(
        "--no-leader-elect",
        dest="leader_elect",
        action="store_false",
        default=None,
        help="run without leader election; only safe if no other operator serves these namespaces",
    )
    add("--lease-namespace", help="namespace of the Lease (default: the operator's own)")
    add("--lease-name", help="name of the Lease for leader election (default: rollcall-operator)")
    add(
        "--lease-duration",
        help="seconds without renewal after which another operator may become the leader "
        "(default: 15)",
    )
    add("--workers", help="number of jobs reconciled at a time (default: 10)")
    add("--http-host", help="address to serve probes and metrics on (default: all addresses)")
    add("--http-port", help="port for probes and metrics; 0 picks a free one (default: 8080)")
    add(
        "--reach",
        help="how to connect to coordinators: direct (pod address), proxy (through the API "
        "server), or auto: direct inside the cluster, else proxy (default: auto)",
    )
    add(
        "--preemption-taints",
        metavar="KEYS",
        help="comma-separated keys of node taints that announce a node's termination: rollouts "
        "leave such a node at once; empty: none (default: those of AWS, GKE, AKS, Karpenter and "
        "the cluster autoscaler)",
    )
    add("--request-timeout", help="seconds until a request to the API server fails (default: 15)")
    add("--drain", help="seconds that running reconciles may take at shutdown (default: 10)")
    add(
        "--service-account",
        metavar="NAMESPACE/NAME",
        help="service account that the operator shows to coordinators, for which it may create "
        "tokens (default: its own; needed where its kubeconfig is a person's)",
    )
    add(
        "--operator-peers",
        metavar="JSON",
        help="where the operator's connections to jobs' pods come from: a JSON list of "
        "NetworkPolicyPeers, for the NetworkPolicies of jobs (default: not known, so that these "
        "let all pods connect to the coordinator's port for the operator, which asks for a token)",
    )
    add(
        "--monitoring-peers",
        metavar="JSON",
        help="what may read the metrics of jobs' pods: a JSON list of NetworkPolicyPeers, for the "
        "NetworkPolicies of jobs (default: nothing)",
    )
    add(
        "--worker-user",
        metavar="UID",
        help="user id of workers that are the only container of their pod and whose template sets "
        "no runAsUser, so that their tokens are readable by this user alone (default: the user of "
        "each image)",
    )
    add("--log-level", help="debug, info, warning or error (default: info)")
    add("--log-format", help="json or text (default: json)")


_MAY_BE_EMPTY = {"preemption_taints"}
_KINDS = {
    "workers": int,
    "worker_user": int,
    "http_port": int,
    "lease_duration": int,
    "request_timeout": float,
    "drain": float,
}


def from_arguments(
    arguments: argparse.Namespace, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from parsed flags, then ROLLCALL_OPERATOR_* variables, then defaults.

    Raises SettingsError.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, object] = {}
    for name in Settings.__dataclass_fields__:
        variable = ENV_PREFIX + name.upper()
        value = getattr(arguments, name, None)
        if value is None:
            value = (
                environ.get(variable) if name in _MAY_BE_EMPTY else environ.get(variable) or None
            )
        if value is not None:
            values[name] = _parse(name, value, variable)
    return Settings(**values)  # type: ignore[arg-type]


def _parse(name: str, value: object, variable: str) -> object:
    if name in {"namespaces", "preemption_taints"}:
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(part.strip() for part in parts if part.strip())  # type: ignore[attr-defined]
    if name in {"operator_peers", "monitoring_peers"}:
        return _peers(str(value), f"--{name.replace('_', '-')} ({variable})")
    if name == "leader_elect":
        return value if isinstance(value, bool) else str(value).lower() not in {"0", "false", "no"}
    kind = _KINDS.get(name, str)
    try:
        return kind(value)
    except ValueError as error:
        flag = "--" + name.replace("_", "-")
        raise SettingsError(f"{flag} ({variable}): {value!r} is not a number") from error


def _peers(text: str, flag: str) -> tuple[Manifest, ...]:
    try:
        peers = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{flag}: not JSON: {error}") from error
    if not isinstance(peers, list) or not all(isinstance(peer, dict) and peer for peer in peers):
        raise SettingsError(f"{flag}: {text} is not a JSON list of NetworkPolicyPeers")
    return tuple(peers)
