"""The messages between a rollout and its reward process: JSON behind its length in 4 bytes.

The process sends what `started` or `refused` makes once, then for each request one answer for each
response. No pickle: what the user's code makes is not to be trusted with more than its own reward.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

LENGTH = struct.Struct("!I")
MAX_ANSWER = 1 << 16  # bytes


def pack(message: Mapping[str, Any]) -> bytes:
    """A message with its length."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def request(
    prompt: Sequence[int], responses: Sequence[Sequence[int]], row: Mapping[str, Any], *, stop: bool
) -> bytes:
    """Ask for the rewards of responses to one prompt, in this order; `stop`: up to an error."""
    return pack({"prompt": prompt, "responses": responses, "row": row, "stop": stop})
