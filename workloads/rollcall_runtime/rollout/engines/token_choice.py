"""How a batch decoder chooses tokens, and where it ends responses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rollcall_protocol.sampling_config import SamplingConfig

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SLACK = 8  # tokens before a stop string that may share its first character


def token_logprobs(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """Log-probabilities [rows, vocabulary] of the distribution that tokens are sampled from.

    Logits [rows, vocabulary] are divided by the temperature; of the tokens in the order of their
    probability those count that `top_k` and `top_p` leave, at least the likeliest one.
    """
    logprobs = (logits.float() / sampling.temperature).log_softmax(-1)
    vocabulary = logprobs.shape[-1]
    if not 0 < sampling.top_k < vocabulary and sampling.top_p >= 1:
        return logprobs
    ordered, order = logprobs.sort(dim=-1, descending=True)
    left = torch.ones_like(ordered, dtype=torch.bool)
    if 0 < sampling.top_k < vocabulary:
        left[:, sampling.top_k :] = False
        ordered = ordered.masked_fill(~left, -torch.inf).log_softmax(-1)
    if sampling.top_p < 1:
        before = ordered.exp().cumsum(-1) - ordered.exp()
        left &= before < sampling.top_p
        left[:, 0] = True  # float32 has no number as small as a tiny top_p
    kept = torch.zeros_like(left).scatter(-1, order, left)
    return logprobs.masked_fill(~kept, -torch.inf).log_softmax(-1)


def completes_a_stop(
    tokens: Sequence[int], stops: Sequence[str], text: Callable[[Sequence[int]], str]
) -> bool:
    """Whether one of `stops` is in the text of a response that had none a token before."""
    longest = max(len(stop.encode()) for stop in stops)  # a token is a byte at least
    found = text(tokens[-(longest + _SLACK) :])
    return any(stop in found for stop in stops)


def choose(logprobs: Tensor, numbers: Tensor) -> Tensor:
    """A token for each row, [rows, 1]: the one at which its number falls in the distribution.

    `logprobs` [rows, vocabulary], `numbers` [rows] from 0 on and below 1. A token of probability 0
    is never chosen.
    """
    below = logprobs.double().exp().cumsum(-1)
    total = below[:, -1:]
    last = (below < total).sum(-1, keepdim=True)  # the last token that adds anything
    found = torch.searchsorted(below, numbers[:, None].double() * total, right=True)
    return torch.minimum(found, last)


def likeliest(logprobs: Tensor, most: int) -> tuple[tuple[int, float], ...]:
    """At most so many tokens with their log-probabilities, of [vocabulary], the likeliest first.

    None of a token that cannot be sampled.
    """
    values, tokens = logprobs.topk(min(most, len(logprobs)))
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return tuple((token, value) for token, value in pairs if value > -math.inf)


def uniform_numbers(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """A number from 0 on and below 1 for each seed's token at a position, and for nothing else.

    SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, OOPSLA 2014), jumped to the position.
    """
    state = _mixed(np.array(seeds, np.uint64))
    state += (np.array(positions, np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    return (_mixed(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))
