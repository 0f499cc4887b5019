"""Log-probabilities and entropy from logits whose vocabulary is divided between the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import (
    reduce_from_tensor_model_parallel_region,
    vocab_parallel_cross_entropy,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

# Low enough that its exponential is 0, and finite, so that 0 times it is 0.
_NEVER = -1e30


def hide_padding(logits: Tensor, *, own_rows: int) -> Tensor:
    """Logits [..., columns] in float32, in which columns from `own_rows` on are never sampled."""
    logits = logits.float()
    if own_rows < logits.shape[-1]:
        logits = logits.clone()
        logits[..., own_rows:] = _NEVER
    return logits


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities [rows, length] of `targets`, from float32 logits [rows, length, columns].

    Overwrites `logits`.
    """
    negative: Tensor = vocab_parallel_cross_entropy(logits, targets)
    return -negative


def entropy_of(logits: Tensor, group: ProcessGroup) -> Tensor:
    """Entropy in nats [rows, length] of float32 logits [rows, length, columns].

    log Z - E[logit], for which each rank adds up its columns: three numbers a position travel.
    """
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest[..., None]
    weights = shifted.exp()
    sums = torch.stack([weights.sum(-1), (weights * shifted).sum(-1)])
    total, weighted = reduce_from_tensor_model_parallel_region(sums, group=group)
    entropy: Tensor = total.log() - weighted / total
    return entropy
