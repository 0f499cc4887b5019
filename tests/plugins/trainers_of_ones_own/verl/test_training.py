"""examples/verl: verl's own trainer on rollouts of this machine, one of which is lost."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.process.pods import ROOT

pytestmark = pytest.mark.timeout(590)
ROLLCALL = str(ROOT / ".venv/bin/rollcall")  # `rollcall local` itself needs no verl
IMAGE = f"registry.example/verl-rollcall:1={sys.prefix}"
KILLED_AT = 6
FIGURES = {"reward": "critic/score/mean", "apart": "training/rollout_probs_diff_max"}
SETTINGS = {
    # Each step waits for samples of its own weights: verl's default has them a step old.
    "separate_async.parameter_sync_step=1": (
        "separate_async.parameter_sync_step=1\n"
        "          - trainer.v1.separate_async.num_warmup_batches=0"
    ),
    "total_training_steps=40": "total_training_steps=24",
}
"""What stands in the example, and in this test's copy of it."""


async def rollcall(home: Path, *words: str) -> asyncio.subprocess.Process:
    """`rollcall local`, which keeps its runs in `home`."""
    return await asyncio.create_subprocess_exec(
        *(ROLLCALL, "local", *words), cwd=ROOT, env=os.environ | {"XDG_STATE_HOME": str(home)}
    )


def on_policy(folder: Path) -> Path:
    """The example, with these settings."""
    copy = shutil.copytree(ROOT / "examples/verl", folder / "verl")
    job = copy / "rljob.yaml"
    text = job.read_text()
    for there, here in SETTINGS.items():
        assert text.count(there) == 1
        text = text.replace(there, here)
    job.write_text(text)
    return copy


@asynccontextmanager
async def example(home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The run, which ends with all that it started."""
    process = await rollcall(home, "run", "-k", str(on_policy(home)), "--image", IMAGE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def trainer_log(home: Path) -> str:
    files = home.glob("rollcall/local/verl/pods/default/verl-trainer-0/*/trainer.0.log")
    return "".join(file.read_text() for file in files)


def figures(log: str, what: str) -> list[float]:
    """Of each step so far; Ray may repeat a line."""
    found = re.findall(rf"step:(\d+) .*? {FIGURES[what]}:([-\d.e]+)", log)
    return [figure for _, figure in sorted({int(step): float(of) for step, of in found}.items())]


async def test_verls_trainer_learns_while_a_rollout_is_lost_and_another_comes(
    tmp_path: Path,
) -> None:
    async with example(tmp_path) as running:
        while len(figures(trainer_log(tmp_path), "reward")) < KILLED_AT:
            assert running.returncode is None
            await asyncio.sleep(1)
        pods = tmp_path / "rollcall/local/verl/pods/default"
        rollout = next(pods.glob("verl-cpu-*")).name
        kill = await rollcall(tmp_path, "kill", rollout)
        assert await kill.wait() == 0
        assert await running.wait() == 0
    log = trainer_log(tmp_path)
    rewards, apart = figures(log, "reward"), figures(log, "apart")
    assert sum(rewards[:3]) / 3 < 0.35
    assert sum(rewards[-3:]) / 3 > 0.6
    # Of what rollouts sampled with, and what the trainer computes for the same tokens.
    assert max(apart) < 0.01  # bfloat16 of the trainer leaves 0.004
    assert "replica 2 is made for a rollout pod that has come" in log
    served = re.findall(r"published: (\d) members", log)  # the trainer is one
    assert re.search("3+2+3+$", "".join(served)), served
