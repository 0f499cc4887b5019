"""examples/verl: verl's own trainer on rollouts of this machine, one of which is lost."""

import asyncio
import os
import re
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
FIGURES = {"reward": "critic/score/mean", "alike": "training/rollout_actor_probs_pearson_corr"}


async def rollcall(home: Path, *words: str) -> asyncio.subprocess.Process:
    """`rollcall local`, which keeps its runs in `home`."""
    return await asyncio.create_subprocess_exec(
        *(ROLLCALL, "local", *words), cwd=ROOT, env=os.environ | {"XDG_STATE_HOME": str(home)}
    )


@asynccontextmanager
async def example(home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The run, which ends with all that it started."""
    process = await rollcall(home, "run", "-k", "examples/verl", "--image", IMAGE)
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
    """Of each step so far."""
    return [float(found) for found in re.findall(rf"step:\d.* {FIGURES[what]}:([-\d.e]+)", log)]


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
    rewards, alike = figures(log, "reward"), figures(log, "alike")
    assert sum(rewards[:3]) / 3 < 0.35
    assert sum(rewards[-3:]) / 3 > 0.6
    # Of what rollouts sampled with, and what the trainer computes for the same tokens.
    assert min(alike) > 0.98
    assert "replica 2 is made for a rollout pod that has come" in log
    served = re.findall(r"published: (\d) members", log)  # the trainer is one
    assert re.search("3+2+3+$", "".join(served)), served
