"""The policy's loss in plain loops over numbers, close to the papers' formulas, and its batches."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollcall_protocol.algorithm_settings import AlgorithmSettings
from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate
from rollcall_runtime.train.train_loss import ModelOutput

PROMPT = 2  # positions before the first that counts


@dataclass(frozen=True)
class PlainRow:
    """The log-probabilities of one response's tokens, and their advantages."""

    policy: Sequence[float]
    proximal: Sequence[float]
    behaviour: Sequence[float]
    reference: Sequence[float]
    entropy: Sequence[float]
    advantages: Sequence[float]


def plain_policy_loss(rows: Sequence[PlainRow], settings: AlgorithmSettings) -> float:
    """The loss as it is minimised: the sum over tokens, divided."""
    total, tokens = 0.0, 0
    for row in rows:
        count = len(row.policy)
        losses = [_token(row, at, settings) for at in range(count)]
        tokens += count
        if settings.aggregation == "token-mean":
            total += sum(losses)
        elif settings.aggregation == "sequence-mean":
            total += sum(losses) / count
        else:
            total += sum(losses) / settings.aggregation_length
    return total / (tokens if settings.aggregation == "token-mean" else len(rows))


def _token(row: PlainRow, at: int, settings: AlgorithmSettings) -> float:
    base = row.proximal if settings.ratio_base == "proximal" else row.behaviour
    start = row.policy if settings.objective == "policy-gradient" else base
    loss = _weight(start, row.behaviour, at, settings) * _objective(row, base, at, settings)
    if settings.kl_coefficient and settings.kl_term == "loss":
        d = row.policy[at] - row.reference[at]
        kl = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[settings.kl_estimator]
        loss += settings.kl_coefficient * kl
    return loss - settings.entropy_coefficient * row.entropy[at]


def _weight(
    start: Sequence[float], behaviour: Sequence[float], at: int, settings: AlgorithmSettings
) -> float:
    if settings.correction == "none":
        return 1.0
    if settings.correction_level == "token":
        ratio = math.exp(start[at] - behaviour[at])
    else:
        ratio = 1.0
        for above, below in zip(start, behaviour, strict=True):
            ratio *= math.exp(above - below)
    if settings.correction == "truncated":
        return min(ratio, settings.correction_cap)
    return ratio if settings.correction_floor <= ratio <= settings.correction_cap else 0.0


def _objective(row: PlainRow, base: Sequence[float], at: int, settings: AlgorithmSettings) -> float:
    advantage = row.advantages[at]
    if settings.objective == "policy-gradient":
        return -advantage * row.policy[at]
    if settings.objective == "gspo":
        logs = [p - b for p, b in zip(row.policy, base, strict=True)]
        ratio = math.exp(sum(logs) / len(logs))
    else:
        ratio = math.exp(row.policy[at] - base[at])
    clipped = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
    if settings.objective == "cispo":
        return -clipped * advantage * row.policy[at]
    loss = -min(ratio * advantage, clipped * advantage)
    if settings.dual_clip and advantage < 0:
        loss = min(loss, -settings.dual_clip * advantage)
    return loss


def random_rows(*, seed: int, rows: int = 6, spread: float = 0.5) -> list[PlainRow]:
    """Responses of one to six tokens; `spread`: how far the policies are apart."""
    rng = random.Random(seed)

    def near(values: Sequence[float]) -> list[float]:
        return [value + rng.uniform(-spread, spread) for value in values]

    def row() -> PlainRow:
        policy = [rng.uniform(-3, -0.5) for _ in range(rng.randint(1, 6))]
        proximal = near(policy)
        return PlainRow(
            policy=policy,
            proximal=proximal,
            behaviour=near(proximal),
            reference=near(policy),
            entropy=[rng.uniform(0.1, 2) for _ in policy],
            advantages=[rng.uniform(-2, 2)] * len(policy),
        )

    return [row() for _ in range(rows)]


def train_batch(rows: Sequence[PlainRow]) -> TrainBatch:
    """The rows as a loss gets them, each behind a prompt."""

    def beside(values: Sequence[float]) -> list[float]:
        return [0.0] * PROMPT + list(values)

    return collate(
        [
            TrainExample(
                tokens=[1] * (PROMPT + len(row.policy)),
                targets=[1] * (PROMPT + len(row.policy)),
                mask=[False] * PROMPT + [True] * len(row.policy),
                extras={
                    "advantages": beside(row.advantages),
                    "behaviour_logprobs": beside(row.behaviour),
                    "proximal_logprobs": beside(row.proximal),
                    "reference_logprobs": beside(row.reference),
                },
            )
            for row in rows
        ]
    )


def model_output(rows: Sequence[PlainRow], batch: TrainBatch) -> ModelOutput:
    """What a model would give; log-probabilities carry gradients. Elsewhere it is not finite."""
    return ModelOutput(
        logprobs=_filled([row.policy for row in rows], batch).requires_grad_(),
        entropy=_filled([row.entropy for row in rows], batch),
    )


def _filled(values: Sequence[Sequence[float]], batch: TrainBatch) -> Tensor:
    filled = torch.full(tuple(batch.mask.shape), -1e9)
    for row, numbers in enumerate(values):
        filled[row, PROMPT : PROMPT + len(numbers)] = torch.tensor(numbers)
    return filled
