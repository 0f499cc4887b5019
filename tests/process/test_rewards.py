"""Reward functions with faults: training goes on as far as the settings allow, and says so."""

from pathlib import Path

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import CheckpointConfig, RewardErrorConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.wire.job_snapshot import MemberState, SuspicionCause
from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_protocol.wire.roster import EpochCause
from tests.process import rewards_with_faults
from tests.process.harness import (
    ENDLESS,
    FAST,
    START_SECONDS,
    STEP_SECONDS,
    TRAINED_SECONDS,
    WHOLE_TRAINING,
    LocalJob,
    in_sync,
)
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = WHOLE_TRAINING

STEPS = 100
EXCLUDED_SECONDS = 30.0  # less than a mutant may take


async def test_a_reward_that_fails_for_some_samples_costs_their_groups_alone(
    tmp_path: Path,
) -> None:
    config = job_config(
        algorithm={"max_steps": STEPS},
        membership=FAST,
        reward_function=rewards_with_faults.SOMETIMES,
    )
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=2)
        seen = await job.operator.until(
            lambda s: s.reward_failure is not None, seconds=TRAINED_SECONDS
        )
        failure = seen.snapshot.reward_failure
        seen = await job.finished()
        assert seen.snapshot.finished is not None
        assert seen.snapshot.finished.error == ""
        rewards = [(await pod.metrics())["rollout_reward"] for pod in job.rollouts]
        assert min(rewards) >= 0.6, rewards  # without new weights it stays under 0.3
        assert all(pod.running and len(pod.logs) == 1 for pod in job.rollouts), "none restarted"
        values = await job.trainer.metrics()
        counted = {
            kind: values.get(f"reward_errors_total{{{kind.value}}}", 0) for kind in RewardErrorKind
        }
        kinds = (
            RewardErrorKind.NOT_A_NUMBER,
            RewardErrorKind.NOT_FINITE,
            RewardErrorKind.PROCESS_DIED,
        )
        assert all(counted[kind] > 0 for kind in kinds), counted
        assert values["prompts_total{rejected_NoReward}"] == sum(counted.values())
        assert failure is not None
        assert failure.function == rewards_with_faults.SOMETIMES
        assert (await job.prompts()).balanced


async def test_the_job_ends_with_the_functions_line_when_too_many_samples_have_no_reward(
    tmp_path: Path,
) -> None:
    checkpoints, message = tmp_path / "checkpoints", tmp_path / "exit-message"
    message.touch()
    config = job_config(
        membership=FAST,
        checkpoint=CheckpointConfig(1, str(checkpoints)),
        reward_function=rewards_with_faults.ALWAYS,
    )
    async with LocalJob(tmp_path, config) as job:
        job.trainer.variables[pod_contract.EXIT_MESSAGE] = str(message)
        await job.start(rollouts=2)
        assert await job.trainer.exited(seconds=START_SECONDS) == ExitCode.BAD_CONFIG
        text = message.read_text()
        assert text.startswith("spec.reward.function: ")
        assert "more than spec.reward.maxErrorShare (0.1) allows" in text
        line = rewards_with_faults.LINE_OF_ALWAYS
        assert f"always raised KeyError: 'answer' (rewards_with_faults.py:{line}), for" in text
        assert all(pod.running for pod in job.rollouts), "their weights are not lost"
        assert not list(checkpoints.glob("step-*")), "no step was made"


async def test_a_function_that_cannot_be_loaded_ends_the_rollout_before_a_step(
    tmp_path: Path,
) -> None:
    message = tmp_path / "exit-message"
    message.touch()
    config = job_config(membership=FAST, reward_function="tests.process.rewards_with_faults:none")
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=0)
        rollout = await job.launch(**{pod_contract.EXIT_MESSAGE: str(message)})
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        assert await rollout.exited(seconds=START_SECONDS) == ExitCode.BAD_CONFIG
        assert message.read_text().startswith("spec.reward.function: module 'tests.process.rewards")
        assert job.operator.last.progress.step == 0


async def test_a_rollout_that_lies_about_rewards_is_excluded_by_those_that_the_trainer_checks(
    tmp_path: Path,
) -> None:
    config = job_config(
        algorithm=ENDLESS,
        membership=FAST,
        reward_function=rewards_with_faults.LYING,
        reward_errors=RewardErrorConfig(verify_share=0.1),
    )
    async with LocalJob(tmp_path, config) as job:
        await job.train(rollouts=2)
        liar = await job.launch(**{rewards_with_faults.LIES: "yes"})
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        seen = await job.operator.until(
            lambda s: any(m.cause is SuspicionCause.WRONG_REWARDS for m in s.members),
            seconds=EXCLUDED_SECONDS,
        )
        suspects = {m.pod_uid for m in seen.snapshot.members if m.state is MemberState.SUSPECT}
        assert suspects == {liar.uid}
        await job.steps(5, seconds=STEP_SECONDS)
        assert in_sync(job.operator.last, *job.rollouts[:2])
