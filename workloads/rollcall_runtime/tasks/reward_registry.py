"""Rewards that a job names without a module, with settings: the core's, or by entry point."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rollcall_runtime.tasks.row_needs import RowNeeds
from rollcall_runtime.worker.engine_registry import Registry


class NamedReward(ABC):
    """A reward with settings of its own. It is called as a user's function is; see RewardFunction.

    `config` are its settings, `field` is their path in the RLJob; SpecError names the wrong one.
    """

    call_seconds: float = math.inf
    """What a call may take before spec.reward.timeoutSeconds ends its process, set once the reward
    is made. A reward that ends its work before that can give a response 0 that takes too long."""

    @abstractmethod
    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        raise NotImplementedError

    @classmethod
    def row_needs(cls, config: Mapping[str, Any], *, field: str) -> RowNeeds | None:  # noqa: ARG003
        """What is checked in all rows before the first step; None: nothing. SpecError as above.

        It is called in the trainer, whose image may lack what the reward imports.
        """
        return None

    @abstractmethod
    def __call__(self, *tokens: Any, **named: Any) -> float:
        """The reward of a response; what it raises is an error of this sample alone."""


named_rewards: Registry[NamedReward] = Registry(
    kind="reward",
    group="rollcall.rewards",
    field="spec.reward.function",
    base=NamedReward,  # type: ignore[type-abstract]
    builtins={
        "environment": "rollcall_runtime.tasks.builtin_rewards.environment:EnvironmentReward",
        "exact-match": "rollcall_runtime.tasks.builtin_rewards.exact_match:ExactMatch",
        "regex": "rollcall_runtime.tasks.builtin_rewards.regex:RegexMatch",
    },
)
