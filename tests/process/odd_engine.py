"""Gives a worker process a weight-sync engine that opens oddly: import it before the program.

The variable ODD_ENGINE says how: "slow" sleeps for SLOW_SECONDS, where a worker whose event loop
stands still for STUCK_SECONDS is not healthy; "exit" calls sys.exit(0) as a
library may that takes the process for its own. A process without the variable, such as the tests
that import its name, keeps the engines as they are.
"""

import os
import sys
import time
from typing import Any

from rollcall_runtime.sync import open_engine as senders
from rollcall_runtime.sync.open_engine import OpenEngine, open_engine
from rollcall_runtime.worker import metrics_server

VARIABLE = "ODD_ENGINE"
SLOW_SECONDS, STUCK_SECONDS = 12.0, 5.0
OPENING = "an engine is being opened"
OPENED = "the engine is open"


def _open_engine(*arguments: Any, **options: Any) -> OpenEngine:
    if os.environ[VARIABLE] == "exit":
        sys.exit(0)
    print(OPENING, flush=True)
    time.sleep(SLOW_SECONDS)
    opened = open_engine(*arguments, **options)
    print(OPENED, flush=True)
    return opened


if VARIABLE in os.environ:
    senders.open_engine = _open_engine
    if os.environ[VARIABLE] == "slow":
        metrics_server.STUCK_SECONDS = STUCK_SECONDS
