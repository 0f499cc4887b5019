"""The training loop that a user writes without a training engine: transformers and torch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

    from rollcall_runtime.train.train_batch import TrainBatch

_IGNORED = -100  # torch's and transformers' target of positions that do not count


class PlainLoop:
    """Cross-entropy and AdamW on one rank, or on several by DistributedDataParallel.

    Ranks take every `ranks`-th row. Rows have one length, so the mean of the ranks' means, which
    DistributedDataParallel takes of the gradients, is the mean over all positions.
    """

    def __init__(
        self, model: Path, *, rank: int, ranks: int, port: int, threads: int, learning_rate: float
    ) -> None:
        torch.set_num_threads(threads)
        self._rank, self._ranks = rank, ranks
        self._model: Any = cast("Any", AutoModelForCausalLM).from_pretrained(
            model, dtype=torch.float32
        )
        self._model.train()
        if ranks > 1:
            dist.init_process_group(
                "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
            )
            self._model = DistributedDataParallel(self._model)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=learning_rate, weight_decay=0.0, foreach=True
        )

    def step(self, batch: TrainBatch) -> float:
        """Train on this rank's rows; returns the mean loss of their positions."""
        share = batch.select(range(self._rank, batch.rows, self._ranks))
        targets = share.targets.masked_fill(~share.mask, _IGNORED)
        logits = self._model(input_ids=share.tokens, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())
