"""Gives a process a name server that stops answering once a file exists.

Import it before the program. Other names than NAME are looked up as usual.
"""

import os
import socket
import time
from pathlib import Path
from typing import Any

NAME = "coordinator.silent.example"
ADDRESS = "SILENT_DNS_ADDRESS"  # what NAME leads to
MARKER = "SILENT_DNS_MARKER"  # the path of the file
ANSWER_SECONDS = 40.0  # until a resolver gives up

_by_dns = socket.getaddrinfo


def _look_up(host: Any, *arguments: Any, **options: Any) -> Any:
    if host != NAME:
        return _by_dns(host, *arguments, **options)
    if Path(os.environ[MARKER]).exists():
        time.sleep(ANSWER_SECONDS)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")
    return _by_dns(os.environ[ADDRESS], *arguments, **options)


if MARKER in os.environ:
    setattr(socket, "getaddrinfo", _look_up)  # noqa: B010 - replaces what all libraries call
