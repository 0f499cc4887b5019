"""`environment`: the sum of what the steps of the job's environment gave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.worker.engine_config import read_settings


@dataclass(frozen=True, slots=True)
class EnvironmentRewardSettings:
    """No settings: any key of `config` is refused."""


class EnvironmentReward(NamedReward):
    """For a job with `spec.environment`."""

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        read_settings(EnvironmentRewardSettings, config, field=field)

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        environment_reward: float,
    ) -> float:
        return environment_reward
