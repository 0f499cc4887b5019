"""One step of policy training: rewards become advantages, and critic and actor learn from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.algorithms.advantages import (
    generalised_advantages,
    normalised_over_batch,
    overlong_penalty,
    rewards_to_go,
    trajectory_advantages,
)
from rollcall_runtime.train.algorithms.kl_estimators import kl_estimate
from rollcall_runtime.train.checkpoint.checkpointer import CheckpointedModel
from rollcall_runtime.train.roles.checkpointed_models import ActorAndOthers
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from rollcall_protocol.algorithm_settings import AlgorithmSettings
    from rollcall_runtime.train.roles.actor import Actor
    from rollcall_runtime.train.roles.critic import Critic
    from rollcall_runtime.train.roles.model_update import ModelUpdate
    from rollcall_runtime.train.roles.reference import Reference
    from rollcall_runtime.train.roles.remote_reference import RemoteReference
    from rollcall_runtime.train.roles.reward_model import RewardModel
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine


@dataclass(frozen=True, slots=True)
class PolicyStepResult:
    """The optimizer steps of actor and critic, in their order; none of a role that rested.

    `wait_for_reference`: seconds until a reference in pods of its own had answered, None without.
    `with_advantage`: share of the samples that the policy learns something from.
    `advantages` are those of the whole batch, [rows, length]; `mismatch` is that of this rank's
    rows that are recorded.
    """

    actor: list[ModelUpdate] = field(default_factory=list)
    critic: list[ModelUpdate] = field(default_factory=list)
    wait_for_reference: float | None = None
    with_advantage: float = math.nan
    advantages: Tensor | None = None
    mismatch: Mapping[int, Sequence[float | None]] = field(default_factory=dict)


class PolicyStep:
    """Puts the roles together; those that the settings do not need are None.

    `reward_weight` is what a reward model's score counts beside the rewards that the rollouts
    computed. In the first `critic_warmup` steps the critic alone is trained.

    Batches are whole on every rank, and have the extras "rewards" and "groups" ([rows], the number
    of the row's prompt) and "behaviour_logprobs" ([rows, length]). "trajectories" ([rows]): the
    number of the row's trajectory; without it each row is one.
    """

    def __init__(
        self,
        settings: AlgorithmSettings,
        *,
        actor: Actor,
        reference: Reference | RemoteReference | None = None,
        critic: Critic | None = None,
        reward_model: RewardModel | None = None,
        reward_weight: float = 1.0,
        critic_warmup: int = 0,
    ) -> None:
        if settings.needs_reference and reference is None:
            raise ValueError("a KL term needs a reference")
        if settings.needs_critic and critic is None:
            raise ValueError("the baseline critic needs a critic")
        self.actor, self._settings = actor, settings
        self._reference, self._critic = reference, critic
        self._reward_model, self._reward_weight = reward_model, reward_weight
        self._critic_warmup = critic_warmup

    @property
    def engines(self) -> tuple[TrainEngine, ...]:
        """Those of all roles, the actor's first; a reference may have none here."""
        roles = (self.actor, self._reference, self._critic, self._reward_model)
        engines = (role.engine for role in roles if role is not None)
        return tuple(engine for engine in engines if engine is not None)

    @property
    def checkpointed(self) -> CheckpointedModel:
        """What a checkpoint keeps: the models whose weights change."""
        engine, others = self.actor.engine, dict[str, CheckpointedModel]()
        if self._critic is not None:
            others["critic"] = self._critic.engine
        reference = self._reference
        if reference is not None and reference.engine is not None and reference.moves:
            others["reference"] = reference.engine
        return ActorAndOthers(engine, others, ranks=engine.setup.ranks) if others else engine

    def run(self, batch: TrainBatch, *, step: int) -> PolicyStepResult:
        """Collective. Train on `batch`; `step` is the number of steps before this one.

        SpecError, on all ranks, if reward model or critic give numbers that are not finite, and
        what `RemoteReference.logprobs` raises.

        Each rank computes advantages of the whole batch: they cost less than a message.
        """
        waited = None
        if self._reference is not None:
            batch = batch.with_extras(reference_logprobs=self._reference.logprobs(batch))
            waited = self._reference.waited
        batch = self._with_advantages(batch)
        critic = self._critic.update(batch) if self._critic is not None else []
        trains = step >= self._critic_warmup or not critic
        actor = self.actor.update(batch) if trains else []
        if self._reference is not None:
            self._reference.step_ended(self.actor.engine, step + 1)
        return PolicyStepResult(
            actor,
            critic,
            waited,
            with_advantage=_share_with_advantage(batch),
            advantages=batch.extras["advantages"],
            mismatch=self.actor.mismatch if trains else {},
        )

    def _with_advantages(self, batch: TrainBatch) -> TrainBatch:
        settings, mask = self._settings, batch.mask
        rewards = self._token_rewards(batch)
        if self._critic is not None:
            values = self._critic.values(batch)
            advice = "lower it, or name another spec.critic.path"
            _expect_finite(values, "spec.critic.learningRate", "the critic", advice)
            advantages, returns = generalised_advantages(
                rewards, values, mask, discount=settings.discount, gae_lambda=settings.gae_lambda
            )
            batch = batch.with_extras(returns=returns, old_values=values)
        elif settings.baseline == "none":
            advantages = rewards_to_go(rewards, mask)
        else:
            samples = trajectory_advantages(
                rewards.sum(1),
                batch.extras["groups"].long(),
                batch.extras.get("trajectories", torch.arange(batch.rows)).long(),
                baseline=settings.baseline,
                normalisation=settings.normalisation,
            )
            advantages = torch.where(mask, samples[:, None], 0.0)
        if settings.normalisation == "batch":
            advantages = normalised_over_batch(advantages, mask)
        return batch.with_extras(advantages=advantages)

    def _token_rewards(self, batch: TrainBatch) -> Tensor:
        """Each token's reward, [rows, length]: KL penalties, and the sample's at its last token."""
        settings, mask = self._settings, batch.mask
        counts = mask.any(1)
        rewards = batch.extras["rewards"]
        if self._reward_model is not None:
            scores = self._reward_model.scores(batch)
            _expect_finite(scores, "spec.rewardModel.path", "this model", "use another one")
            rewards = rewards + self._reward_weight * scores
        if settings.overlong_limit:
            rewards = rewards + settings.overlong_penalty * overlong_penalty(
                mask.sum(1), limit=settings.overlong_limit, buffer=settings.overlong_buffer
            )
        last = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
        at_tokens = torch.zeros_like(batch.extras["behaviour_logprobs"])
        at_tokens[torch.arange(batch.rows), last] = torch.where(counts, rewards, 0.0)
        if settings.needs_reference and settings.kl_term == "reward":
            divergence = kl_estimate(
                batch.extras["behaviour_logprobs"],
                batch.extras["reference_logprobs"],
                settings.kl_estimator,
            )
            at_tokens = at_tokens - settings.kl_coefficient * torch.where(mask, divergence, 0.0)
        return at_tokens


def _share_with_advantage(batch: TrainBatch) -> float:
    """Of the rows: those that the policy learns something from."""
    return float((batch.extras["advantages"] != 0).any(1).float().mean())


def _expect_finite(values: Tensor, field: str, model: str, advice: str) -> None:
    if not bool(values.isfinite().all()):
        raise SpecError(field, f"{model} gives values that are not finite: {advice}")
