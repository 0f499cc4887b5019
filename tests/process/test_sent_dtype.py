"""A trainer in bf16 sends bf16: half of the bytes, and its rollouts learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_protocol.job_config import EngineRef
from tests.process.harness import FAST, WHOLE_TRAINING, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WHOLE_TRAINING

STEPS = 100
LEARNT = 0.7  # without new weights it stays under 0.3


async def trained(folder: Path, dtype: str, *, steps: int) -> tuple[float, float]:
    """Bytes that were sent, and the reward of a rollout, of a trainer of two ranks in bf16."""
    folder.mkdir()
    config = job_config(
        algorithm={"max_steps": steps},
        membership=FAST,
        trainer_replicas=2,
        trainer_engine=EngineRef("fsdp2", {"precision": "bf16"}),
        weight_sync={"dtype": dtype},
    )
    async with LocalJob(folder, config) as running:
        await running.start(rollouts=1)
        await running.finished()
        reward = (await running.rollouts[0].metrics())["rollout_reward"]
        return (await running.trainer.metrics())["param_sync_bytes_total"], reward


async def test_it_learns_by_half_of_the_bytes(tmp_path: Path) -> None:
    halved, reward = await trained(tmp_path / "auto", "Auto", steps=STEPS)
    assert reward >= LEARNT
    whole, _ = await trained(tmp_path / "float32", "Float32", steps=10)
    assert 0.4 < (halved / STEPS) / (whole / 10) < 0.6
