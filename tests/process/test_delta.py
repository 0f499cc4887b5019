"""Deltas in a whole job: it learns by them, less is sent, and a damaged base is replaced."""

from pathlib import Path

from rollcall_protocol.job_config import DeltaConfig, JobConfig, OptimizerConfig
from rollcall_protocol.wire.job_snapshot import SessionCause
from rollcall_protocol.wire.roster import EpochCause
from tests.process import damaged_weights
from tests.process.harness import FAST, WHOLE_TRAINING, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = WHOLE_TRAINING

STEPS = 20
LEARNT_AFTER = 100
# Most bytes of 32-bit weights change in a step that learns quickly.
ALWAYS = DeltaConfig(max_share=1.0)
# So small that few bytes change.
SMALL_STEPS = OptimizerConfig("adamw", 1e-11)


def job(delta: DeltaConfig | None, *, min_rollouts: int = 1) -> JobConfig:
    return job_config(
        algorithm={"max_steps": STEPS, "optimizer": SMALL_STEPS},
        membership=FAST | {"min_rollouts": min_rollouts},
        weight_sync={"delta": delta},
    )


async def sent_bytes(folder: Path, delta: DeltaConfig | None) -> float:
    """Of a job that ends with its newest weights on both rollouts."""
    folder.mkdir()
    async with LocalJob(folder, job(delta)) as running:
        await running.start(rollouts=2)
        seen = await running.finished()
        assert [member.version for member in seen.snapshot.members] == [STEPS] * 2
        assert seen.snapshot.session is not None
        assert seen.snapshot.session.cause is not SessionCause.ENGINE_ERROR
        return (await running.trainer.metrics())["param_sync_bytes_total"]


async def test_less_is_sent_when_only_changes_are(tmp_path: Path) -> None:
    whole = await sent_bytes(tmp_path / "whole", None)
    deltas = await sent_bytes(tmp_path / "deltas", DeltaConfig())
    assert deltas < 0.5 * whole


async def test_it_learns_from_deltas_of_two_ranks(tmp_path: Path) -> None:
    config = job_config(
        algorithm={"max_steps": LEARNT_AFTER},
        membership=FAST,
        trainer_replicas=2,
        weight_sync={"delta": ALWAYS},
    )
    async with LocalJob(tmp_path, config) as running:
        await running.start(rollouts=2)
        await running.finished()
        rewards = [(await pod.metrics())["rollout_reward"] for pod in running.rollouts]
        assert min(rewards) >= 0.7, rewards  # without new weights it stays under 0.3
        trainer = await running.trainer.metrics()
        assert trainer["param_sync_deltas_total"] >= 0.9 * LEARNT_AFTER


async def test_a_rollout_whose_base_is_damaged_refuses_the_delta_and_gets_all(
    tmp_path: Path,
) -> None:
    """It flips a bit of what it serves from."""
    async with LocalJob(tmp_path, job(DeltaConfig(), min_rollouts=2)) as running:
        await running.start(rollouts=1)
        damaged = await running.launch(
            imports=damaged_weights.__name__, **{damaged_weights.DAMAGES: "yes"}
        )
        await running.push_roster(EpochCause.MEMBERS_JOINED)
        seen = await running.finished()
        assert [member.version for member in seen.snapshot.members] == [STEPS] * 2
        refused = [pod for pod in running.rollouts if "wrong digest in buckets [0]" in pod.log()]
        assert refused == [damaged]
        trainer = await running.trainer.metrics()
        assert 0 < trainer["param_sync_deltas_total"] < STEPS
