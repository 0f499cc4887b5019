"""Speaks to a rendezvous as one that is no member."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from hack.attacks.attack import NotRefusedError
from hack.attacks.clients import send_raw

if TYPE_CHECKING:
    from hack.attacks.clients import Endpoint

REFUSAL_SECONDS = 30.0


def frame(body: Any) -> bytes:
    """A message of the rendezvous: its length, then JSON."""
    text = json.dumps(body).encode()
    return struct.pack(">I", len(text)) + text


TAKE_A_SEAT = frame({"put": {"rank/1": ""}, "get": ["rank/0"], "seconds": 1.0})


async def refused_at_rendezvous(
    endpoint: Endpoint, secret: Any, *, session: Any = "trainer"
) -> None:
    """Try to take the second rank's seat; NotRefusedError if the rendezvous answers."""
    hello = frame({"secret": secret, "session": session})
    answer = await send_raw(endpoint, hello + TAKE_A_SEAT, seconds=REFUSAL_SECONDS)
    if answer:
        raise NotRefusedError(f"the rendezvous at {endpoint.port} answered {answer[:200]!r}")
