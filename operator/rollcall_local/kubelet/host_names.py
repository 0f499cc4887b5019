"""The DNS names of pods, inside of the processes that stand for them.

A worker asks for `reverse-trainer-0.reverse-trainer.default.svc`, and its certificate has that
name; there is no DNS server, so `socket.getaddrinfo` and `gethostbyname` look into a file first.
Programs that are not Python see the machine's own names alone.
"""

import json
import os
import socket
from pathlib import Path
from typing import Any

HOSTS = "ROLLCALL_LOCAL_HOSTS"  # a JSON file: addresses by name
_SUFFIX = ".cluster.local"


def install() -> None:
    """Have this process's look-ups begin with the file that its environment names."""
    path = os.environ.get(HOSTS)
    if not path:
        return
    addresses, address = socket.getaddrinfo, socket.gethostbyname

    def known(host: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if isinstance(name, str) and ".svc" in name:
            return _known(Path(path)).get(name.rstrip(".").removesuffix(_SUFFIX), host)
        return host

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        return addresses(known(host), *rest, **more)

    def gethostbyname(hostname: Any, /) -> str:
        return address(known(hostname))

    socket.getaddrinfo, socket.gethostbyname = getaddrinfo, gethostbyname


def _known(path: Path) -> dict[str, str]:
    """The file is replaced whole when it changes; without it no name is known."""
    try:
        found: dict[str, str] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found
