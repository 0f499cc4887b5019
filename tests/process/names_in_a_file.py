"""Has a process look host names up in a file, whose lines are `name address`, before DNS.

Import it before the program, with the file's path in the variable NAMES. A process without it
looks names up as usual.
"""

import os
import socket
from pathlib import Path
from typing import Any

NAMES = "NAMES_IN_A_FILE"  # a variable of the process

_by_dns = socket.getaddrinfo


def _look_up(host: Any, *arguments: Any, **options: Any) -> Any:
    lines = Path(os.environ[NAMES]).read_text(encoding="utf-8").splitlines()
    known = dict(line.split() for line in lines)
    return _by_dns(known.get(host, host), *arguments, **options)


if NAMES in os.environ:
    setattr(socket, "getaddrinfo", _look_up)  # noqa: B010 - replaces what all libraries call
