"""A reference in a process of its own says what the trainer's would, also after it was killed."""

import signal
from pathlib import Path

import pytest

from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.job_config import JobConfig
from tests.process.harness import FAST, START_SECONDS, LocalJob
from tests.process.test_trainer_failure import lines, logged
from tests.unit.rollcall_runtime.jobs import job_config

STEPS = 12


def with_kl_term() -> JobConfig:
    """Two runs of it train on the same samples: the term is too small to change a weight."""
    return job_config(
        algorithm={
            "max_steps": STEPS,
            "max_staleness": 0,
            "deterministic": True,
            "prompts_per_step": 8,
            "group_size": 8,
            "settings": preset("grpo", kl_coefficient=1e-9),
        },
        membership=FAST,
        trainer_replicas=2,
    )


async def divergences(job: LocalJob) -> list[float]:
    """KL divergence from the reference in each step, once training is over."""
    await job.finished(seconds=START_SECONDS)
    figures = [line["figures"] for line in lines(job.trainer) if "figures" in line]
    return [step["actor/kl_loss"] for step in figures]  # type: ignore[index]


@pytest.mark.slow
async def test_the_divergence_is_that_from_the_trainers_own_reference_over_a_kill(
    tmp_path: Path,
) -> None:
    (tmp_path / "own").mkdir()
    async with LocalJob(tmp_path, with_kl_term()) as job:
        await job.start(rollouts=1)
        expected = await divergences(job)
    async with LocalJob(tmp_path / "own", with_kl_term(), own_reference=True) as job:
        await job.start(rollouts=1)
        reference = job.reference
        assert reference is not None
        await logged(job.trainer, 2)
        reference.send(signal.SIGKILL)
        await reference.exited(seconds=10)
        await job.trainer.logs_line("the reference did not answer", seconds=START_SECONDS)
        waiting = await job.trainer.metrics()
        assert waiting["step"] < STEPS, "training waits"
        await reference.start()
        found = await divergences(job)
        metrics = await job.trainer.metrics()
        assert len(job.trainer.logs) == 1, "the trainer went on where it was"
    assert len(expected) == STEPS
    assert expected[-1] > 1e-4, "the policy has moved away"
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert metrics["wait_for_reference_seconds_count"] == STEPS
