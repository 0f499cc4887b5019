"""What a policy is trained on: prompts with their samples, as a batch for a training engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_protocol.wire.partial_responses import NOT_SAMPLED
from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.wire.messages import Sample


def policy_batch(
    prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Sample]], *, version: int
) -> TrainBatch:
    """One row a sample: group i holds the samples of prompt i. ValueError if there is none.

    A row is prompt and response without the last token, which is predicted alone; the mask is true
    where a token is predicted that was sampled, not given by an environment. Extras: `rewards` and
    `groups` (the prompt's place among `prompts`), [rows]; `behaviour_logprobs` of the policy that
    sampled each token, and `same_version`, 1 where that policy had the weights of `version`,
    [rows, length].
    """
    examples = [
        _example(prompt, sample, group=group, version=version)
        for group, (prompt, samples) in enumerate(zip(prompts, groups, strict=True))
        for sample in samples
    ]
    if not examples:
        raise ValueError("a batch needs at least one sample")
    return collate(examples)


def _example(prompt: Sequence[int], sample: Sample, *, group: int, version: int) -> TrainExample:
    before, count = len(prompt) - 1, len(sample.tokens)
    if before < 0 or not count == len(sample.logprobs) == len(sample.versions):
        raise ValueError("a sample needs a prompt, and a logprob and version for each token")
    sequence = [*prompt, *sample.tokens]
    return TrainExample(
        tokens=sequence[:-1],
        targets=sequence[1:],
        mask=[False] * before + [one != NOT_SAMPLED for one in sample.versions],
        extras={
            "rewards": sample.reward,
            "groups": group,
            "behaviour_logprobs": [0.0] * before + [*sample.logprobs],
            "same_version": [0.0] * before + [float(one == version) for one in sample.versions],
        },
    )
