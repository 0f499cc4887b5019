"""Which rows of a tensor that lies on several trainer ranks each of them sends."""

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard


def is_cut_by_rows(tensor: DTensor) -> bool:
    """Whether each rank holds whole rows of its first dimension, or all of it."""
    return all(place in {Replicate(), Shard(0)} for place in tensor.placements)


def own_rows(tensor: DTensor, number: int) -> tuple[int, bool]:
    """Of a tensor that is cut by rows: the first row that this rank holds, and whether it sends
    its rows of tensor `number`. Where several ranks hold the same rows they take turns, tensor by
    tensor. The last ranks have no rows of a short tensor; an empty one is sent by the first rank.
    """
    start, holder, holders = 0, 0, 1
    for dimension, place in enumerate(tensor.placements):
        index = tensor.device_mesh.get_local_rank(dimension)
        parts = tensor.device_mesh.size(dimension)
        if isinstance(place, Replicate):
            holder, holders = holder * parts + index, holders * parts
        else:
            each = -(-len(tensor) // parts)  # as torch.chunk cuts
            start = min(index * each, len(tensor))
    has_rows = len(tensor.to_local()) > 0 or (start == 0 and not len(tensor))
    return start, has_rows and number % holders == holder


@torch.no_grad()
def own_part(number: int, tensor: torch.Tensor, *, rank: int, ranks: int) -> torch.Tensor | None:
    """Collective. What this rank sends of tensor `number`, which all ranks have: its rows of a
    DTensor, or the whole if it is its turn; None for nothing.

    A DTensor that is cut in another way is gathered. ValueError if it lies on some of the ranks
    alone.
    """
    turn = number % ranks == rank
    if not isinstance(tensor, DTensor):
        return tensor if turn else None
    if tensor.device_mesh.size() != ranks:
        problem = f"lies on {tensor.device_mesh.size()} of {ranks} ranks"
        raise ValueError(f"{problem}; give a tensor of all ranks' mesh, or one that is whole")
    if not is_cut_by_rows(tensor):
        whole = tensor.full_tensor()
        return whole if turn else None
    _, sends = own_rows(tensor, number)
    return tensor.to_local() if sends else None
