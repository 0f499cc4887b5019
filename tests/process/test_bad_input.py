"""Models that give no numbers: the trainer names the field, and no step is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rollcall_protocol import pod_contract
from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.job_config import CheckpointConfig, CriticConfig, RewardModelConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.models.export import export_model
from rollcall_runtime.models.open_model import open_model
from tests.process.harness import FAST, START_SECONDS, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow


def broken_model(folder: Path) -> str:
    """A directory with a whole file of weights, which are not numbers."""
    source = open_model("builtin:reverse-tiny")
    export_model(source, ((n, t) for n, t in source.build().state_dict().items()), folder)
    file = folder / "model.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(file).items()}, file)
    return str(folder)


def broken_critic(folder: Path) -> dict[str, Any]:
    return {
        "algorithm": {"settings": preset("ppo")},
        "critic": CriticConfig(model=broken_model(folder / "critic")),
    }


def broken_reward_model(folder: Path) -> dict[str, Any]:
    return {"reward_model": RewardModelConfig(broken_model(folder / "scorer"))}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (broken_critic, ("spec.critic.path: ", "copy the model again")),
        (broken_reward_model, ("spec.rewardModel.path: ", "copy the model again")),
    ],
)
async def test_what_is_no_number_ends_the_trainer_before_a_step(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]], says: tuple[str, ...]
) -> None:
    checkpoints, message = tmp_path / "checkpoints", tmp_path / "exit-message"
    message.touch()
    config = job_config(
        membership=FAST, checkpoint=CheckpointConfig(1, str(checkpoints)), **make(tmp_path)
    )
    async with LocalJob(tmp_path, config) as job:
        job.trainer.variables[pod_contract.EXIT_MESSAGE] = str(message)
        await job.trainer.start()
        assert await job.trainer.exited(seconds=START_SECONDS) == ExitCode.BAD_CONFIG
        assert message.read_text().startswith(says[0])
        assert says[1] in message.read_text()
        assert not list(checkpoints.glob("step-*")), "no step was made"
