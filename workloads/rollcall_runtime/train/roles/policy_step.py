"""One step of policy training: rewards become advantages, and critic and actor learn from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import distributed

from rollcall_runtime.train.algorithms.advantages import (
    generalised_advantages,
    normalised_over_batch,
    rewards_to_go,
    sample_advantages,
)
from rollcall_runtime.train.algorithms.kl_estimators import kl_estimate
from rollcall_runtime.train.algorithms.overlong_penalty import overlong_penalty

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_protocol.algorithm_settings import AlgorithmSettings
    from rollcall_runtime.train.roles.actor import Actor
    from rollcall_runtime.train.roles.critic import Critic
    from rollcall_runtime.train.roles.model_update import ModelUpdate
    from rollcall_runtime.train.roles.reference import Reference
    from rollcall_runtime.train.roles.reward_model import RewardModel
    from rollcall_runtime.train.train_batch import TrainBatch


@dataclass(frozen=True, slots=True)
class PolicyStepResult:
    """The optimizer steps of actor and critic, in their order; none of a role that rested."""

    actor: list[ModelUpdate] = field(default_factory=list)
    critic: list[ModelUpdate] = field(default_factory=list)


class PolicyStep:
    """Puts the roles together; those that the settings do not need are None.

    `reward_weight` is what a reward model's score counts beside the rewards that the rollouts
    computed. In the first `critic_warmup` steps the critic alone is trained.

    Batches are this rank's rows, equally many on all ranks, with the extras "rewards" and "groups"
    ([rows], the number of the row's prompt) and "behaviour_logprobs" ([rows, length]). Rows without
    a position that counts fill up the batch.
    """

    def __init__(
        self,
        settings: AlgorithmSettings,
        *,
        actor: Actor,
        reference: Reference | None = None,
        critic: Critic | None = None,
        reward_model: RewardModel | None = None,
        reward_weight: float = 1.0,
        critic_warmup: int = 0,
    ) -> None:
        if settings.needs_reference and reference is None:
            raise ValueError("a KL term needs a reference")
        if settings.needs_critic and critic is None:
            raise ValueError("the baseline critic needs a critic")
        self._settings, self._actor = settings, actor
        self._reference, self._critic = reference, critic
        self._reward_model, self._reward_weight = reward_model, reward_weight
        self._critic_warmup = critic_warmup

    def run(self, batch: TrainBatch, *, step: int) -> PolicyStepResult:
        """Collective. Train on `batch`; `step` is the number of steps before this one."""
        if self._reference is not None:
            batch = batch.with_extras(reference_logprobs=self._reference.logprobs(batch))
        batch = self._with_advantages(batch)
        critic = self._critic.update(batch) if self._critic is not None else []
        actor = self._actor.update(batch) if step >= self._critic_warmup or not critic else []
        if self._reference is not None:
            self._reference.step_ended(self._actor.engine, step + 1)
        return PolicyStepResult(actor, critic)

    def _with_advantages(self, batch: TrainBatch) -> TrainBatch:
        settings, mask = self._settings, batch.mask
        rewards = self._token_rewards(batch)
        if self._critic is not None:
            values = self._critic.values(batch)
            advantages, returns = generalised_advantages(
                rewards, values, mask, discount=settings.discount, gae_lambda=settings.gae_lambda
            )
            batch = batch.with_extras(returns=returns, old_values=values)
        elif settings.baseline == "none":
            advantages = rewards_to_go(rewards, mask)
        else:
            advantages = torch.where(mask, self._sample_advantages(batch, rewards)[:, None], 0.0)
        if settings.normalisation == "batch":
            advantages = normalised_over_batch(advantages, mask, total=self._total)
        return batch.with_extras(advantages=advantages)

    def _token_rewards(self, batch: TrainBatch) -> Tensor:
        """Each token's reward, [rows, length]: KL penalties, and the sample's at its last token."""
        settings, mask = self._settings, batch.mask
        counts = mask.any(1)
        rewards = batch.extras["rewards"]
        if self._reward_model is not None:
            rewards = rewards + self._reward_weight * self._reward_model.scores(batch)
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

    def _sample_advantages(self, batch: TrainBatch, rewards: Tensor) -> Tensor:
        """Of this rank's rows, compared with their groups' rows wherever these are."""
        groups = torch.where(batch.mask.any(1), batch.extras["groups"], -1.0)
        own = torch.stack([rewards.sum(1), groups])
        everyone = self._gather(own)
        advantages = sample_advantages(
            everyone[:, 0].flatten(),
            everyone[:, 1].flatten().long(),
            baseline=self._settings.baseline,
            normalisation=self._settings.normalisation,
        )
        return advantages.view(len(everyone), -1)[self._actor.engine.data_parallel_rank]

    def _gather(self, own: Tensor) -> Tensor:
        """Collective. The tensors of all ranks, [ranks, ...]; all are of one shape."""
        engine = self._actor.engine
        if engine.data_parallel_size == 1:
            return own[None]
        found = [torch.empty_like(own) for _ in range(engine.data_parallel_size)]
        distributed.all_gather(found, own, group=engine.data_parallel_group)
        return torch.stack(found)

    def _total(self, own: Tensor) -> Tensor:
        """Collective. The sum over all ranks."""
        return self._gather(own).sum(0)
