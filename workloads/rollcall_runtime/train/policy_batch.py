"""What a policy is trained on: prompts with their samples, as a batch for a training engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_runtime.train.advantages import group_normalised
from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.wire.messages import Sample


def policy_batch(
    prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Sample]]
) -> TrainBatch:
    """One row a sample: group i holds the samples of prompt i. ValueError if there is none.

    A row is prompt and response without the last token, which is predicted alone; the mask is true
    where a response's token is predicted. Extras: `advantages` [rows]; of the policy that sampled
    each token, [rows, length], `behaviour_logprobs` and `versions`, the numbers of its weights.
    """
    pairs = [
        (prompt, sample) for prompt, group in zip(prompts, groups, strict=True) for sample in group
    ]
    if not pairs:
        raise ValueError("a batch needs at least one sample")
    rewards = [[sample.reward for sample in group] for group in groups if group]
    advantages = group_normalised(rewards).tolist()
    return collate(
        [
            _example(prompt, sample, advantage)
            for (prompt, sample), advantage in zip(pairs, advantages, strict=True)
        ]
    )


def _example(prompt: Sequence[int], sample: Sample, advantage: float) -> TrainExample:
    before, count = len(prompt) - 1, len(sample.tokens)
    if before < 0 or not count == len(sample.logprobs) == len(sample.versions):
        raise ValueError("a sample needs a prompt, and a logprob and version for each token")
    sequence = [*prompt, *sample.tokens]
    return TrainExample(
        tokens=sequence[:-1],
        targets=sequence[1:],
        mask=[False] * before + [True] * count,
        extras={
            "advantages": advantage,
            "behaviour_logprobs": [0.0] * before + [*sample.logprobs],
            "versions": [0.0] * before + [float(version) for version in sample.versions],
        },
    )
