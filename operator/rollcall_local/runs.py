"""The runs on this machine, those that have ended included, as clusters for `rollcall`'s words."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rollcall_local.errors import LocalError
from rollcall_local.state_folder import StateFolder, home
from rollcall_operator.kube.resources import RL_JOBS

SETTLE_SECONDS = 15.0
"""How long a run may be without an API server, while it starts or ends."""


class NoSuchRunError(LocalError):
    """No run is named so, or several could be meant; the message lists them."""


def all_runs() -> list[StateFolder]:
    """Sorted by name."""
    return [StateFolder(path.parent) for path in sorted(home().glob("*/format.json"))]


def chosen(run: str, job: str) -> StateFolder:
    """The run that is named, or of the job of that name, or the only one that goes on.

    NoSuchRunError.
    """
    runs = all_runs()
    for found in runs:
        if found.path.name == (run or job):
            return found
    if not run:
        going_on = [found for found in runs if found.holder() is not None]
        for several in (going_on, [found for found in runs if found.has_job(job)]):
            if len(several) == 1:
                return several[0]
    names = ", ".join(
        found.path.name + (" (ended)" if found.holder() is None else "") for found in runs
    )
    names = names or "none; rollcall local run makes one"
    raise NoSuchRunError(f"{run or job or 'which run'}: name one with --run; there are {names}")


@asynccontextmanager
async def opened(folder: StateFolder) -> AsyncIterator[Path]:
    """A kubeconfig for a run. That of one which has ended leads to what it has left behind.

    NoSuchRunError if it starts or ends for too long.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while folder.holder() is not None and not folder.kubeconfig.exists():
        if time.monotonic() > deadline:
            raise NoSuchRunError(
                f"the run {folder.path.name} starts or ends, and has had no API server for "
                f"{SETTLE_SECONDS:.0f} s; see {folder.path / 'local.log'}"
            )
        await asyncio.sleep(0.1)
    if folder.holder() is not None:
        yield folder.kubeconfig
        return
    from rollcall_local.ended_run import opened_again  # noqa: PLC0415 - the others need less

    async with opened_again(folder):
        yield folder.kubeconfig


def summary(folder: StateFolder) -> dict[str, Any]:
    """A row for each run: its name, whether it goes on, and its jobs."""
    from rollcall_local.api_server.folder import ObjectFolder  # noqa: PLC0415 - `status` needs less

    entries = ObjectFolder(folder.objects).load()
    jobs = [e.object for key, e in entries.items() if key.plural == RL_JOBS.plural]
    phases = [(job.get("status") or {}).get("phase", "Pending") for job in jobs]
    process = folder.holder()
    return {
        "run": folder.path.name,
        "process": process or "",
        "jobs": ", ".join(
            f"{job['metadata']['name']} {phase}" for job, phase in zip(jobs, phases, strict=True)
        ),
        "folder": str(folder.path),
    }
