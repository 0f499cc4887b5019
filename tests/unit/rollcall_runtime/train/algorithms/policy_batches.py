"""Batches for losses: rows of random length with log-probabilities that a test chooses."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate
from rollcall_runtime.train.train_loss import ModelOutput
from tests.unit.rollcall_runtime.train.algorithms.plain_policy_loss import PlainRow

PROMPT = 2  # positions before the first that counts


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
