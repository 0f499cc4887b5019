"""Log-probabilities and entropy from logits, in the logits' own memory.

log_softmax makes a second tensor of the logits' size and keeps it for its backward pass, which
makes two more. Here one tensor holds the logits, then all log-probabilities, then the gradient;
temporary tensors have a few rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_ELEMENTS = 1 << 21  # of a temporary tensor


def target_logprobs(logits: Tensor, targets: Tensor, *, entropy: bool) -> tuple[Tensor, ...]:
    """Log-probabilities of `targets` and, if asked for, entropies in nats: float32 [positions].

    `logits` are float32 [positions, vocabulary], `targets` int64 [positions]. `logits` are
    overwritten, and must be used nowhere else; a second backward pass raises RuntimeError.
    """
    found: tuple[Tensor, ...] = _TargetLogprobs.apply(logits, targets, entropy)  # type: ignore[no-untyped-call]
    return found


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, ...]:
        for (part,) in _in_parts(logits):
            part.copy_(part.log_softmax(-1))
        logprobs = logits
        found = [logprobs.gather(-1, targets[:, None])[:, 0]]
        if entropy:
            found.append(torch.cat([_entropy(part) for (part,) in _in_parts(logprobs)]))
        ctx.save_for_backward(logprobs.detach(), targets, *found[1:])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *of_found: Tensor) -> tuple[Tensor, None, None]:
        logprobs, targets, *entropies = ctx.saved_tensors
        for parts in _in_parts(logprobs, targets, *of_found, *entropies):
            _become_gradient(*parts)
        return logprobs, None, None


def _become_gradient(
    logprobs: Tensor,
    targets: Tensor,
    of_logprobs: Tensor,
    of_entropies: Tensor | None = None,
    entropies: Tensor | None = None,
) -> None:
    """Put the loss's gradient by the logits in the place of `logprobs`.

    With p = exp(logprob): d logprob[target] / d logit = [target] - p, and
    d entropy / d logit = -p (logprob + entropy).
    """
    if of_entropies is None or entropies is None:
        logprobs.exp_().mul_(-of_logprobs[:, None])
    else:
        p = logprobs.exp()
        logprobs.add_(entropies[:, None]).mul_(-of_entropies[:, None])
        logprobs.sub_(of_logprobs[:, None]).mul_(p)
    places = targets[:, None]
    logprobs.scatter_(1, places, logprobs.gather(1, places) + of_logprobs[:, None])


def _entropy(logprobs: Tensor) -> Tensor:
    return -(logprobs.exp() * logprobs).sum(-1)


def _in_parts(first: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Successive rows of all of them, so many that `first` has _ELEMENTS at most, or one row."""
    rows = max(1, _ELEMENTS // first.shape[1])
    return zip(*(torch.split(tensor, rows) for tensor in (first, *others)), strict=True)
