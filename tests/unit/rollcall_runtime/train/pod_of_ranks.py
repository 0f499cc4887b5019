"""A program that starts itself once for each rank; what a rank does comes from its environment.

ACT_<local rank>: `wait` until SIGTERM and end with 0, `save`: the same, but take a while in which
another SIGTERM would kill it, `ignore` SIGTERM, `exit:<code>:<message>`, `kill` itself, or
`orphan`: leave a grandchild behind, then wait.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollcall_protocol import pod_contract
from rollcall_runtime.train import local_ranks

STARTED = "started-{}"
BOTH_STARTED_SECONDS = 15.0
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def save(*_: object) -> None:
    """As the interpreter, which takes its handlers away before it ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(0.5)
    sys.exit(0)


def wait_for_the_other() -> None:
    """Until both ranks have begun: one that has not would be ended by the signal to stop."""
    deadline = time.monotonic() + BOTH_STARTED_SECONDS
    folder = Path(os.environ[pod_contract.STATE_DIR])
    while not all((folder / STARTED.format(rank)).exists() for rank in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def act(what: str, local_rank: str) -> None:
    """Do what one rank does."""
    handlers: dict[str, Any] = {"ignore": signal.SIG_IGN, "save": save}
    signal.signal(signal.SIGTERM, handlers.get(what, lambda *_: os._exit(0)))
    if what == "orphan":
        subprocess.run(["sh", "-c", "sleep 0.1 & echo $!"], check=True)
    Path(os.environ[pod_contract.STATE_DIR], STARTED.format(local_rank)).touch()
    if what.startswith("exit"):
        wait_for_the_other()
        _, code, message = what.split(":", 2)
        Path(os.environ[pod_contract.EXIT_MESSAGE]).write_text(message)
        os._exit(int(code))
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


if __name__ == "__main__":
    own = os.environ.get(pod_contract.LOCAL_RANK)
    if own is not None:
        act(os.environ[f"ACT_{own}"], own)
    # As the first process of a container does, it adopts what its children leave behind.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    local_ranks.END_SECONDS = float(os.environ["END_SECONDS"])
    environment = SimpleNamespace(
        state_dir=Path(os.environ[pod_contract.STATE_DIR]),
        rank=2,
        job=SimpleNamespace(trainer_processes=2),
    )
    pod_contract.TERMINATION_LOG = os.environ["LOG"]
    sys.exit(local_ranks.run_local_ranks(environment, os.environ))  # type: ignore[arg-type]
