"""A trainer of the user's own with several ranks, each of which sends its part of the weights."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.harness import FAST, STEP_SECONDS, LocalJob
from tests.unit.rollcall_runtime.jobs import external_job_config

pytestmark = pytest.mark.slow  # the gate has tests/scenarios/test_own_trainer.py

PROGRAM = Path(__file__).with_name("sending_ranks_program.py")
STEPS = 6
FAILED = 2  # the step in which a rank's tensors end with an error


def ranks_job(folder: Path, layout: str, ranks: int, engine: str = "gloo") -> LocalJob:
    """A job whose trainer is the program, in `ranks` processes that torchrun starts."""
    config = external_job_config(membership=FAST, weight_sync={"engine": engine})
    job = LocalJob(folder, config)
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
    job.trainer.command = [sys.executable, *launcher, str(PROGRAM), layout, str(STEPS)]
    return job


def lines(log: str) -> list[dict[str, Any]]:
    """What the ranks printed of their steps."""
    return [json.loads(line) for line in log.splitlines() if line.startswith('{"rank"')]


async def check(job: LocalJob, ranks: int, *, fails: int | None = FAILED) -> None:
    """Let the job run with a kill; every version is whole, and all ranks agree."""
    await job.start(rollouts=2)
    await job.trainer.logs_line('"step": 2', seconds=STEP_SECONDS)
    job.rollouts[0].send(signal.SIGKILL)
    seen = await job.finished(seconds=STEP_SECONDS)
    assert seen.snapshot.finished is not None
    assert (seen.snapshot.finished.step, seen.snapshot.finished.error) == (STEPS, "")
    found = lines(job.trainer.log())
    assert len(found) == ranks * STEPS
    for step in range(STEPS):
        printed = [line for line in found if line["step"] == step]
        if step == fails:
            assert all("no more tensors" in line["error"] for line in printed)
            continue
        assert len({(line["version"], *line["members"]) for line in printed}) == 1
        worst = next(line["worst"] for line in printed if line["rank"] == 0)
        assert worst < 1e-4, "samples are those of the whole model's weights"
    assert found[-1]["members"] == [job.rollouts[1].name]


async def test_sharded_weights_arrive_whole_from_their_ranks(tmp_path: Path) -> None:
    async with ranks_job(tmp_path, "sharded", 2) as job:
        await check(job, 2)


@pytest.mark.parametrize(
    ("layout", "ranks", "engine"),
    [
        ("sharded in replicas", 4, "gloo"),
        ("columns", 2, "gloo"),
        ("whole", 3, "gloo"),
        ("sharded", 2, "mooncake"),
    ],
)
async def test_weights_arrive_whole_however_they_lie(
    tmp_path: Path, layout: str, ranks: int, engine: str
) -> None:
    async with ranks_job(tmp_path, layout, ranks, engine) as job:
        await check(job, ranks, fails=None if layout == "columns" else FAILED)


async def test_all_ranks_learn_that_the_process_of_one_has_died(
    tmp_path: Path,
) -> None:
    async with ranks_job(tmp_path, "sharded", 2) as job:
        await job.start(rollouts=1)
        await job.trainer.logs_line('"step": 0', seconds=STEP_SECONDS)
        (sender,) = senders(rank=1, ranks=2)
        os.kill(sender, signal.SIGKILL)
        await job.trainer.logs_line(f'"step": {STEPS - 1}', seconds=STEP_SECONDS)
        last = [line for line in lines(job.trainer.log()) if line["step"] == STEPS - 1]
        assert all("the coordinator's process has ended" in line["error"] for line in last)


def senders(*, rank: int, ranks: int) -> list[int]:
    """Process ids of what sends for a rank."""
    place = [str(each) for each in (rank, ranks, rank, ranks)]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (folder / "cmdline").read_text().split("\0")[:-1]
            if "rollcall_runtime.external" in words and words[-4:] == place:
                found.append(int(folder.name))
    return found
