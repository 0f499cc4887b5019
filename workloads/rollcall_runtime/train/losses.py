"""Policy losses for samples of older weights.

All follow PPO's sign: they are minimised. With pi the policy in training, behave the policy that
sampled a token (its recorded log-probability), prox the policy just before the batch's first update
and A the advantage, a token's loss is

    decoupled   -min(r A, clip(r) A) w   r = pi / prox, w = min(prox / behave, cap), w constant
                AReaL (Fu et al. 2025) after Hilton et al. 2022; the cap as in TIS
    tis         -w A log pi              w = min(pi / behave, cap), w constant
                truncated importance sampling (Ionides 2008; IMPALA, Espeholt et al. 2018)
    grpo        -min(r A, clip(r) A)     r = pi / behave
                GRPO (Shao et al. 2024) without its KL term

where clip(r) keeps r within 1 - clip and 1 + clip. With one update a batch, decoupled and tis have
the same gradient and the clip never acts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rollcall_protocol.job_config import LossConfig
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_loss import LossSums, ModelOutput
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.algorithm.loss"
_LOG_BOUND = 20.0  # keeps exp of a log-ratio finite; ratios this far off are clipped or capped


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """One of the losses above with its settings, averaged over tokens.

    It reads the extras `advantages`, `behaviour_logprobs` and, if `uses_proximal`,
    `proximal_logprobs`: a batch without those is taken as the first after the weights changed, so
    that prox is pi itself.
    """

    name: str
    clip: float
    cap: float
    uses_proximal: bool
    terms: Callable[["PolicyLoss", Tensor, TrainBatch], tuple[Tensor, Mapping[str, Tensor]]]

    @property
    def needs_entropy(self) -> bool:
        return False

    def denominator(self, batch: TrainBatch) -> Tensor:
        return batch.mask.sum()

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        if output.logprobs is None:
            raise ValueError("a policy loss needs the log-probabilities of a language model")
        # Outside the mask all is 0 from here on, so nothing there can overflow or leak.
        mask = batch.mask
        masked = torch.where(mask, output.logprobs, 0.0)
        losses, metrics = self.terms(self, masked, batch)
        count = mask.sum()
        return LossSums(
            loss=torch.where(mask, losses, 0.0).sum(),
            metrics={
                name: (torch.where(mask, value.detach(), 0.0).sum(), count)
                for name, value in metrics.items()
            },
        )


def policy_loss(config: LossConfig) -> PolicyLoss:
    """The loss that `config.type` names; SpecError for an unknown one or unusable numbers."""
    if config.type not in _LOSSES:
        known = ", ".join(sorted(_LOSSES))
        raise SpecError(f"{FIELD}.type", f"unknown loss {config.type!r}; known: {known}")
    if not 0 < config.clip < 1:
        raise SpecError(f"{FIELD}.clip", f"{config.clip} is not between 0 and 1")
    if not config.is_cap >= 1:
        raise SpecError(f"{FIELD}.isCap", f"{config.is_cap} is below 1")
    terms, uses_proximal = _LOSSES[config.type]
    return PolicyLoss(
        name=config.type,
        clip=config.clip,
        cap=config.is_cap,
        uses_proximal=uses_proximal,
        terms=terms,
    )


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return (above - below).clamp(-_LOG_BOUND, _LOG_BOUND).exp()


def _clipped(loss: PolicyLoss, ratio: Tensor, batch: TrainBatch) -> tuple[Tensor, Tensor]:
    """The pessimistic surrogate, and where the clip decides."""
    advantages = batch.extras["advantages"][:, None]
    free = ratio * advantages
    bound = ratio.clamp(1 - loss.clip, 1 + loss.clip) * advantages
    return -torch.minimum(free, bound), (bound < free).float()


def _decoupled(
    loss: PolicyLoss, logprobs: Tensor, batch: TrainBatch
) -> tuple[Tensor, Mapping[str, Tensor]]:
    current = logprobs.detach()
    given = batch.extras.get("proximal_logprobs")
    proximal = current if given is None else torch.where(batch.mask, given, 0.0)
    ratio = _ratio(logprobs, proximal)
    weight = _ratio(proximal, batch.extras["behaviour_logprobs"])
    surrogate, clipped = _clipped(loss, ratio, batch)
    return surrogate * weight.clamp(max=loss.cap), {
        "ratio": ratio,
        "clipped": clipped,
        "weight": weight,
        "capped": (weight > loss.cap).float(),
        "kl": batch.extras["behaviour_logprobs"] - current,
    }


def _tis(
    loss: PolicyLoss, logprobs: Tensor, batch: TrainBatch
) -> tuple[Tensor, Mapping[str, Tensor]]:
    current = logprobs.detach()
    weight = _ratio(current, batch.extras["behaviour_logprobs"])
    return -weight.clamp(max=loss.cap) * batch.extras["advantages"][:, None] * logprobs, {
        "weight": weight,
        "capped": (weight > loss.cap).float(),
        "kl": batch.extras["behaviour_logprobs"] - current,
    }


def _grpo(
    loss: PolicyLoss, logprobs: Tensor, batch: TrainBatch
) -> tuple[Tensor, Mapping[str, Tensor]]:
    ratio = _ratio(logprobs, batch.extras["behaviour_logprobs"])
    surrogate, clipped = _clipped(loss, ratio, batch)
    return surrogate, {
        "ratio": ratio,
        "clipped": clipped,
        "kl": batch.extras["behaviour_logprobs"] - logprobs.detach(),
    }


_Terms = Callable[[PolicyLoss, Tensor, TrainBatch], tuple[Tensor, Mapping[str, Tensor]]]
_LOSSES: Mapping[str, tuple[_Terms, bool]] = {
    "decoupled": (_decoupled, True),
    "tis": (_tis, False),
    "grpo": (_grpo, False),
}
