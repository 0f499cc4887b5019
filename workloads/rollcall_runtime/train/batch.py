"""What a training engine computes on: rows of tokens, and what the loss must know of each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.advantages import group_normalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollcall_protocol.wire.messages import Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of prompt and response, padded on the right.

    Everything but `tokens` and `advantages` stands beside `tokens[:, 1:]`, the tokens that a model
    predicts, hence [rows, length - 1].
    """

    tokens: Tensor  # int64 [rows, length]
    mask: Tensor  # bool: the token belongs to the response
    logprobs: Tensor  # float32: of the policy that sampled the token; 0 outside the mask
    versions: Tensor  # int64: weight version that sampled the token; -1 outside the mask
    advantages: Tensor  # float32 [rows]
    proximal: Tensor | None = None  # float32: log-probabilities just before the batch's updates

    def __post_init__(self) -> None:
        rows, length = self.tokens.shape
        beside = {"mask": self.mask, "logprobs": self.logprobs, "versions": self.versions}
        if self.proximal is not None:
            beside["proximal"] = self.proximal
        for name, tensor in beside.items():
            if tensor.shape != (rows, length - 1):
                raise ValueError(f"{name} is {tuple(tensor.shape)}, not {(rows, length - 1)}")
        if self.advantages.shape != (rows,):
            raise ValueError(f"advantages are {tuple(self.advantages.shape)}, not {(rows,)}")

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return self.tokens.shape[0]

    def slice(self, start: int, end: int) -> Batch:
        """Rows from `start` up to `end`, without copying."""
        parts = {
            item.name: value[start:end]
            for item in fields(self)
            if (value := getattr(self, item.name)) is not None
        }
        return Batch(**parts)

    def split(self, parts: int) -> list[Batch]:
        """Successive parts whose sizes differ by one row at most; at least one row in each."""
        parts = min(parts, self.rows)
        edges = [self.rows * part // parts for part in range(parts + 1)]
        return [self.slice(start, end) for start, end in itertools.pairwise(edges)]

    def with_proximal(self, proximal: Tensor) -> Batch:
        """The same rows with the log-probabilities of the proximal policy."""
        return replace(self, proximal=proximal)


def collate(prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Sample]]) -> Batch:
    """One row a sample: group i holds the samples of prompt i. ValueError if there is none."""
    pairs = [
        (prompt, sample) for prompt, group in zip(prompts, groups, strict=True) for sample in group
    ]
    if not pairs:
        raise ValueError("a batch needs at least one sample")
    length = max(len(prompt) + len(sample.tokens) for prompt, sample in pairs)
    tokens, mask, logprobs, versions = [], [], [], []
    for prompt, sample in pairs:
        before, count = len(prompt), len(sample.tokens)
        if not before or not count == len(sample.logprobs) == len(sample.versions):
            raise ValueError("a sample needs a prompt, and a logprob and version for each token")
        after = length - before - count
        tokens.append([*prompt, *sample.tokens, *[0] * after])
        mask.append([False] * (before - 1) + [True] * count + [False] * after)
        logprobs.append([0.0] * (before - 1) + [*sample.logprobs] + [0.0] * after)
        versions.append([-1] * (before - 1) + [*sample.versions] + [-1] * after)
    return Batch(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        mask=torch.tensor(mask, dtype=torch.bool),
        logprobs=torch.tensor(logprobs, dtype=torch.float32),
        versions=torch.tensor(versions, dtype=torch.int64),
        advantages=group_normalised(
            [[sample.reward for sample in group] for group in groups if group]
        ),
    )
