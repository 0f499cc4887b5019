"""The address of a network interface, for pods that have several."""

import array
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_REQUEST = struct.Struct("16s16s")  # struct ifreq: the interface's name, then a sockaddr_in
_SIOCGIFADDR = 0x8915
_INET6 = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = "00"


def address_of(interface: str, *, like: str) -> str:
    """The address that `interface` has in the address family of `like`, an address of this pod.

    Raises ValueError that lists the interfaces there are.
    """
    family = ipaddress.ip_address(like).version
    found = _ipv4(interface) if family == 4 else _ipv6(interface)
    if found is None:
        known = ", ".join(sorted(name for _, name in socket.if_nameindex()))
        raise ValueError(
            f"this pod has no network interface {interface!r} with an IPv{family} address; "
            f"it has {known}"
        )
    return found


def _ipv4(interface: str) -> str | None:
    name = interface.encode()
    if len(name) > 15:  # longer than the kernel's names
        return None
    request = array.array("B", _REQUEST.pack(name, b""))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            fcntl.ioctl(asker, _SIOCGIFADDR, request)
        except OSError:  # no such interface, or it has no such address
            return None
    return socket.inet_ntoa(request[20:24].tobytes())


def _ipv6(interface: str) -> str | None:
    if not _INET6.exists():
        return None
    for line in _INET6.read_text().splitlines():
        address, _, _, scope, _, name = line.split()
        loopback = name == "lo"  # its address has a scope of its own
        if name == interface and (scope == _GLOBAL_SCOPE or loopback):
            return str(ipaddress.ip_address(bytes.fromhex(address)))
    return None
