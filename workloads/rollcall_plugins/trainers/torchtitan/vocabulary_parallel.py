"""Log-probabilities of targets, where each tensor-parallel rank may have logits of a part of them.

Only numbers for each position travel, never logits. After Megatron-LM's vocabulary-parallel
cross-entropy (Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh


def target_logprobs(
    logits: Tensor, targets: Tensor, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target and, if asked, the entropy of its distribution in nats.

    `logits` [rows, length, vocabulary] is whole, or a DTensor sharded over its last dimension.
    `targets` [rows, length] are the same on all ranks of its mesh, as are the results,
    [rows, length] in float32.
    """
    if isinstance(logits, DTensor):
        return _of_sharded(logits, targets, entropy=entropy)
    logprobs = logits.float().log_softmax(-1)
    found = logprobs.gather(-1, targets[..., None])[..., 0]
    return found, -(logprobs.exp() * logprobs).sum(-1) if entropy else None


def _of_sharded(logits: DTensor, targets: Tensor, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
    mesh, local = logits.device_mesh, logits.to_local().float()
    largest = local.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=mesh.get_group())
    shifted = local - largest[..., None]
    weights = shifted.exp()
    total = _sum(weights.sum(-1), mesh)
    first = mesh.get_local_rank() * (logits.shape[-1] // mesh.size())
    index = targets - first
    is_here = (index >= 0) & (index < local.shape[-1])
    index = index.clamp(0, local.shape[-1] - 1)
    found = _sum(shifted.gather(-1, index[..., None])[..., 0] * is_here, mesh)
    logprobs = found - total.log()
    if not entropy:
        return logprobs, None
    return logprobs, total.log() - _sum((weights * shifted).sum(-1), mesh) / total


def _sum(values: Tensor, mesh: DeviceMesh) -> Tensor:
    """Added up over the ranks, which all compute the same from it: each has the whole gradient."""
    partial = DTensor.from_local(values, mesh, [Partial()], run_check=False)
    whole: Tensor = partial.redistribute(placements=[Replicate()]).to_local()
    return whole
