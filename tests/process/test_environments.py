"""A job whose responses have turns learns to use its environment, and outlives a rollout."""

import os
import signal
from pathlib import Path

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import EnvironmentConfig
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import (
    FAST,
    START_SECONDS,
    STEP_SECONDS,
    WHOLE_TRAINING,
    LocalJob,
    in_sync,
)
from tests.process.pods import AT_IMPORT, ROOT
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = WHOLE_TRAINING

EXAMPLE = ROOT / "examples" / "calculator"
STEPS = 60


async def test_it_learns_to_ask_the_calculator_and_goes_on_without_a_rollout(
    tmp_path: Path,
) -> None:
    config = job_config(
        algorithm={"max_steps": STEPS},
        membership=FAST,
        data=DataConfig(sources=(DataSource(str(EXAMPLE / "prompts.jsonl")),)),
        reward_function="environment",
        environment=EnvironmentConfig(function="calculator:Calculator", max_turns=3),
    )
    found = {"PYTHONPATH": os.pathsep.join([AT_IMPORT["PYTHONPATH"], str(EXAMPLE)])}
    async with LocalJob(tmp_path, config) as job:
        await job.trainer.start()
        job.operator.start()
        for _ in range(3):
            await job.launch(**found)
        await job.push_roster(EpochCause.JOB_STARTED)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await job.steps(5, seconds=STEP_SECONDS)
        killed, *left = job.rollouts
        killed.send(signal.SIGKILL)
        await job.push_roster(EpochCause.MEMBER_LOST, without=(killed,))
        seen = await job.finished()
        assert seen.snapshot.finished is not None
        assert seen.snapshot.finished.error == ""
        assert {m.state for m in seen.snapshot.members} <= {MemberState.IN_SYNC, MemberState.GONE}
        rewards = [(await pod.metrics())["rollout_reward"] for pod in left]
        # The call alone gives 0.2, and a guess of the sum right in one of ten adds 0.08.
        assert min(rewards) >= 0.5, rewards
        assert (await job.prompts()).balanced
