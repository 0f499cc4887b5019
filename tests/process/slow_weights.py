"""Has a rollout take its time to receive and to apply each version, so that faults hit it there.

Import it before the program. It does nothing in a process without the variables.
"""

import asyncio
import os
import time
from typing import Any

from rollcall_protocol.wire.ids import Version
from rollcall_runtime.rollout.weight_receiver import WeightReceiver

STAGE, COMMIT = "SLOW_STAGE", "SLOW_COMMIT"  # variables of the process: seconds

_receive, _apply = WeightReceiver._receive, WeightReceiver._apply


def _slow_receive(self: WeightReceiver, *arguments: Any) -> None:
    _receive(self, *arguments)
    time.sleep(float(os.environ.get(STAGE, "0")))


async def _slow_apply(self: WeightReceiver, version: Version) -> None:
    await asyncio.sleep(float(os.environ.get(COMMIT, "0")))
    await _apply(self, version)


setattr(WeightReceiver, "_receive", _slow_receive)  # noqa: B010 - mypy refuses it otherwise
setattr(WeightReceiver, "_apply", _slow_apply)  # noqa: B010
