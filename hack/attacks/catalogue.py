"""All attacks, subject by subject."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hack.attacks.attack import ATTACKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hack.attacks.attack import Attack

SUBJECTS = (
    "token",
    "route",
    "message",
    "completion",
    "replay",
    "connection",
    "handshake",
    "rendezvous",
    "fuzz",
    "name_server",
    "file",
    "lying_rollout",
    "answer",
)


def all_attacks() -> Sequence[Attack]:
    """All attacks in the order in which they are done."""
    for subject in SUBJECTS:
        importlib.import_module(f"hack.attacks.by_{subject}")
    return list(ATTACKS.values())
