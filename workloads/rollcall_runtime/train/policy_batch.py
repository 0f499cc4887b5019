"""What a policy is trained on: prompts with their samples, as a batch for a training engine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rollcall_protocol.wire.messages import ALONE
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED
from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_protocol.wire.messages import Sample


def policy_batch(
    prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Sample]], *, version: int
) -> TrainBatch:
    """One row a sample: group i holds the samples of prompt i. ValueError if there is none.

    A row is prompt and response without the last token, which is predicted alone; the mask is true
    where a token is predicted that was sampled, not given by an environment. Extras: `rewards`,
    `groups` (the prompt's place among `prompts`), `trajectories` (a number that the samples of one
    share) and `shares` (of a sample in its trajectory, by sampled tokens), [rows];
    `behaviour_logprobs` of the policy that
    sampled each token, and `same_version`, 1 where that policy had the weights of `version`,
    [rows, length].
    """
    examples, numbers = [], dict[tuple[int, int], int]()
    for group, (prompt, samples) in enumerate(zip(prompts, groups, strict=True)):
        for place, (sample, share) in enumerate(zip(samples, _shares(samples), strict=True)):
            # Those that are ALONE are numbered behind all others.
            own = sample.trajectory if sample.trajectory != ALONE else len(samples) + place
            number = numbers.setdefault((group, own), len(numbers))
            of = {"groups": group, "trajectories": number, "shares": share}
            examples.append(_example(prompt, sample, of=of, version=version))
    if not examples:
        raise ValueError("a batch needs at least one sample")
    return collate(examples)


def _shares(samples: Sequence[Sample]) -> list[float]:
    sampled = [sum(one != NOT_SAMPLED for one in sample.versions) for sample in samples]
    wholes = Counter[int]()
    for sample, count in zip(samples, sampled, strict=True):
        wholes[sample.trajectory] += count
    return [
        1.0 if sample.trajectory == ALONE else count / max(wholes[sample.trajectory], 1)
        for sample, count in zip(samples, sampled, strict=True)
    ]


def _example(
    prompt: Sequence[int], sample: Sample, *, of: Mapping[str, float], version: int
) -> TrainExample:
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
            **of,
            "behaviour_logprobs": [0.0] * before + [*sample.logprobs],
            "same_version": [0.0] * before + [float(one == version) for one in sample.versions],
        },
    )
