"""`rollcall local run` as a user has it: Ctrl-C keeps all, and a kill leaves no process."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from rollcall_cli.cluster import open_cluster
from rollcall_local.kubelet.marks import marked
from rollcall_local.state_folder import StateFolder
from tests.scenarios.job import STARTED, ScenarioJob, example
from tests.scenarios.test_trainer import claim

NAME = "interrupted"
END_SECONDS = 60.0


@pytest.fixture(autouse=True)
def on_this_machine(request: pytest.FixtureRequest) -> None:
    if request.config.option.on != "machine":
        pytest.skip("a cluster has no such command")


class Run:
    """One `rollcall local run` of a job with checkpoints, in a process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = StateFolder(home / NAME)
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until its API server answers."""
        file = self.home / "job.yaml"
        volume = {"persistentVolumeClaim": {"claimName": NAME}}
        body = example("reverse.yaml", name=NAME)
        body["spec"]["trainer"]["checkpoint"] = {"volume": volume, "everySteps": 1000}
        file.write_text(yaml.safe_dump_all([claim(NAME), body]))
        program = "import sys; from rollcall_local.commands import main; sys.exit(main())"
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, "run", str(file)),
            env={**os.environ, "ROLLCALL_LOCAL_HOME": str(self.home)},
        )
        deadline = time.monotonic() + STARTED
        while not self.folder.kubeconfig.exists():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)

    async def reaches(self, step: int) -> int:
        """Wait until the trainer has made so many steps; the number that was seen first."""
        async with open_cluster(kubeconfig=str(self.folder.kubeconfig)) as (client, _):
            return await ScenarioJob(client, "default", example("reverse.yaml", name=NAME)).reaches(
                step
            )

    async def ends_by(self, number: signal.Signals) -> int:
        """Its exit code after a signal."""
        assert self.process is not None
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), END_SECONDS)

    def processes(self) -> list[int]:
        """Those of its containers."""
        pods = {path.name for path in self.folder.path.glob("pods/*/*/*")}
        return [pid for pid in marked() if any(uid in environment(pid) for uid in pods)]


def environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


@pytest_asyncio.fixture(loop_scope="session")
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    started = Run(tmp_path)
    await started.start()
    yield started
    if started.process is not None and started.process.returncode is None:
        await started.ends_by(signal.SIGKILL)


async def test_an_interrupted_run_goes_on_from_where_it_was(run: Run) -> None:
    made = await run.reaches(5)
    assert await run.ends_by(signal.SIGINT) == 130
    assert run.processes() == []
    await run.start()
    assert await run.reaches(1) >= made


async def test_a_killed_run_leaves_no_process(run: Run) -> None:
    await run.reaches(1)
    assert run.processes() != []
    await run.ends_by(signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while left := run.processes():
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.1)
