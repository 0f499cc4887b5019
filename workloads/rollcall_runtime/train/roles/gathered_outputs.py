"""What a model gives for all rows of a batch, of which each rank computes its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import distributed

from rollcall_runtime.train.data_parallel_rows import share_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine
    from rollcall_runtime.train.train_loss import ModelOutput


def gathered_outputs(
    engine: TrainEngine, batch: TrainBatch, choose: Callable[[ModelOutput], Tensor | None]
) -> Tensor:
    """Collective. What `choose` takes of the model's output, for the whole `batch` on every rank.

    [rows], or [rows, length] with 0 where the mask is false; on the CPU. ValueError if the model's
    head does not give it.
    """
    shares = share_rows(batch.lengths.tolist(), ranks=engine.data_parallel_size)
    own = shares[engine.data_parallel_rank]
    part = batch.select(own)
    with engine.eval_mode():
        found = choose(engine.forward(part))
    if found is None:
        raise ValueError(f'a model with the head "{engine.setup.head}" does not give this output')
    by_position = found.ndim == 2
    shape = batch.mask.shape if by_position else batch.lengths.shape
    everywhere = found.new_zeros(shape)
    if by_position:
        everywhere[own, : found.shape[1]] = found.where(part.mask.to(found.device), 0.0)
    else:
        everywhere[own] = found
    if engine.data_parallel_size > 1:
        # Every row is computed by one rank, and is 0 on the others.
        distributed.all_reduce(everywhere, group=engine.data_parallel_group)
    return everywhere.cpu()
