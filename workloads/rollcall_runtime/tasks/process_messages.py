"""Messages between a worker and a process of the user's: JSON behind its length in 4 bytes."""

import json
import struct
from collections.abc import Mapping
from typing import Any

LENGTH = struct.Struct("!I")


def pack(message: Mapping[str, Any]) -> bytes:
    """A message with its length."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body
