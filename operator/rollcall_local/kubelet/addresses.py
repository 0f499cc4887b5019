"""An address of its own in 127/8 for each pod, so that all of them can use the same ports."""

import errno
import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollcall_protocol import pod_contract

_NETWORKS = [(second, third) for second in range(251, 1, -1) for third in range(251)]
_PODS = range(1, 251)
_SPARE = 251  # no pod's
_PORTS = (
    pod_contract.MEMBERSHIP_PORT,
    pod_contract.COMPLETIONS_PORT,
    pod_contract.AGENT_PORT,
    pod_contract.RENDEZVOUS_PORT,
    pod_contract.REFERENCE_PORT,
    pod_contract.FRONT_PORT,
    pod_contract.METRICS_PORT,
    pod_contract.PARTS_PORT,
)


class NoAddressError(Exception):
    """All addresses are in use; the message says by what."""


@dataclass(slots=True)
class PodAddresses:
    """Addresses `127.a.b.1` to `.250`, by the name of the pod; a name keeps its address.

    The network `127.a.b` is this process's alone: an abstract socket holds it, which the kernel
    frees however the process ends (unix(7)).
    """

    network: str
    _holder: socket.socket
    _given: dict[tuple[str, str], str] = field(default_factory=dict)
    _next: Iterator[int] = field(default_factory=lambda: itertools.cycle(_PODS))

    def of(self, namespace: str, pod: str) -> str:
        """The address of a pod; NoAddressError."""
        known = self._given.get((namespace, pod))
        if known is not None:
            return known
        taken = set(self._given.values())
        for _ in _PODS:
            address = f"{self.network}.{next(self._next)}"
            if address not in taken:
                self._given[namespace, pod] = address
                return address
        raise NoAddressError(f"{len(_PODS)} pods have all addresses of {self.network}")

    def free(self, namespace: str, pod: str) -> None:
        """The pod is gone, and no other will have its name."""
        self._given.pop((namespace, pod), None)

    def names(self) -> dict[tuple[str, str], str]:
        """All that were given, by namespace and pod."""
        return dict(self._given)

    def close(self) -> None:
        """Leave the network to other processes."""
        self._holder.close()


def hold_network() -> PodAddresses:
    """A network that no other such process has; NoAddressError."""
    for second, third in _NETWORKS:
        network = f"127.{second}.{third}"
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0rollcall-local-{network}")
            _try(f"{network}.1")
        except OSError as error:
            holder.close()
            if error.errno != errno.EADDRINUSE:
                raise NoAddressError(
                    f"{network}.1 cannot be used: {error}; pods need an address each in 127/8"
                ) from error
            continue
        try:
            _check_ports(f"{network}.{_SPARE}")
        except NoAddressError:
            holder.close()
            raise
        return PodAddresses(network, holder)
    raise NoAddressError("other jobs on this machine hold all networks of 127/8")


def _try(address: str, port: int = 0) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))


def _check_ports(address: str) -> None:
    """NoAddressError if a program that listens at all addresses has a port of pods."""
    for port in _PORTS:
        try:
            _try(address, port)
        except OSError as error:
            raise NoAddressError(
                f"port {port} of {address} cannot be used: {error.strerror}; a program listens "
                f"there at all addresses (ss -ltnp 'sport = :{port}'): end it, or give it another"
            ) from error
