"""TRL's GRPOTrainer on rollouts, beside the same trainer that generates by itself."""

import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from hack.bench.spreads import spread
from tests.process.test_trl import PROGRAM, logged, trl_job, trl_model

STEPS, FIRST = 20, 5  # of which steps after the first ones are measured
# The likeliest token each time, so that both sample the same; without the correction, which knows
# of rollouts alone, so that both train the same.
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "top_k": 1,
    "vllm_importance_sampling_correction": False,
    "per_device_train_batch_size": 16,
    "max_completion_length": 32,
}
_SECONDS = 300.0


async def trl_steps(rounds: int) -> dict[str, Any]:
    """Seconds a step of both, in turn, and whether their rewards and lengths were the same."""
    with_rollouts, alone, same = [], [], True
    for _ in range(max(1, rounds // 3)):
        with tempfile.TemporaryDirectory() as folder:
            async with trl_job(Path(folder), max_tokens=32, **SETTINGS) as job:
                await job.start(rollouts=2)
                await job.finished(seconds=_SECONDS)
                await job.trainer.logs_line("'train_runtime'", seconds=30)
                ours = job.trainer.log()
            theirs = await _alone(Path(folder) / "alone")
        with_rollouts.append(_seconds(ours))
        alone.append(_seconds(theirs))
        for what in ("reward", "completions/mean_length"):
            same = same and logged(ours, what) == logged(theirs, what)
    ratios = [a / b for a, b in zip(with_rollouts, alone, strict=True)]
    return {
        "with_rollouts": spread(with_rollouts),
        "alone": spread(alone),
        "ratio": spread(ratios),
        "same_rewards_and_lengths": same,
    }


async def _alone(folder: Path) -> str:
    """What the program logs that attaches nothing."""
    folder.mkdir()
    words = [str(PROGRAM), *trl_model(folder, SETTINGS | {"attach": False})]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(output.decode(errors="replace")[-2000:])
    return output.decode()


def _seconds(log: str) -> float:
    return statistics.median(logged(log, "step_time")[FIRST:])
