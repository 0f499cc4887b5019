"""Context parallelism after DeepSpeed Ulysses (arXiv:2309.14509): ranks share a row's positions.

A rank computes its own positions in all layers. Attention needs the others too, so before it an
exchange turns "my positions, all heads" into "all positions, my heads", and after it back. Each
rank's gradient is that of its positions; the sum over ranks is the whole one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from rollcall_runtime.models.sequence_attention import RowLayout
from rollcall_runtime.train.engines.common.packing import HeadInput

if TYPE_CHECKING:
    from torch import Tensor


class ContextParallelRanks:
    """The ranks of `group`, which have the same rows. They divide heads of attention evenly."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank, self._size = group.rank(), group.size()

    def own_part(self, given: HeadInput) -> HeadInput:
        """The positions of this rank: as many as the others', with padding at the end of the rows.

        The padding is one more sequence of the layout, which nothing else sees.
        """
        rows, length = given.tokens.shape
        padding = -length % self._size
        own = (length + padding) // self._size
        positions = given.positions
        if positions is None:
            positions = torch.arange(length, device=given.tokens.device).expand(rows, -1)
        whole = given.layout or RowLayout((length,))
        lengths = (*whole.lengths, padding) if padding else whole.lengths

        def part(values: Tensor) -> Tensor:
            return pad(values, (0, padding)).narrow(1, self._rank * own, own)

        return HeadInput(
            tokens=part(given.tokens),
            targets=part(given.targets),
            mask=part(given.mask),
            positions=part(positions),
            layout=replace(whole, lengths=lengths, ranks=self),
        )

    def whole(self, values: Tensor, length: int) -> Tensor:
        """Collective. [rows, `length`] of every rank's own positions [rows, positions].

        Its gradient is that of the own positions: the others' is their ranks' matter.
        """
        gathered: Tensor = _Gathered.apply(self._group, values)  # type: ignore[no-untyped-call]
        return gathered[:, :length]

    def own_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Collective. See SharingRanks.

        Key and value heads that ranks cannot divide are repeated as often as it takes.
        """
        times = repeats(query.shape[1], key.shape[1], self._size)
        given = [query, key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)]
        # Of all heads those that go to the same rank stand together.
        shares = [torch.unflatten(tensor, 1, (self._size, -1)) for tensor in given]
        sent = torch.cat(shares, dim=2).transpose(0, 1)
        received = _exchange(self._group, sent)  # [ranks, rows, own heads of all three, ...]
        joined = received.permute(1, 2, 0, 3, 4).flatten(2, 3)
        of_query, of_key, of_value = torch.split(
            joined, [share.shape[2] for share in shares], dim=1
        )
        return of_query, of_key, of_value

    def own_positions(self, mixed: Tensor) -> Tensor:
        """Collective. Undoes the exchange of attention; shapes as in SharingRanks."""
        sent = torch.unflatten(mixed, 1, (self._size, -1)).transpose(0, 1)
        received = _exchange(self._group, sent)  # [ranks, rows, own positions, their heads, width]
        return received.permute(1, 2, 0, 3, 4).flatten(2, 3)


def repeats(heads: int, key_heads: int, ranks: int) -> int:
    """How many times each key head must be there for the ranks to divide them evenly.

    A head of queries then finds its key head on its own rank. `ranks` divide `heads`.
    """
    groups = heads // key_heads
    return next(
        times
        for times in range(1, groups + 1)
        if groups % times == 0 and key_heads * times % ranks == 0
    )


def _exchange(group: dist.ProcessGroup, parts: Tensor) -> Tensor:
    """Part n of `parts` [ranks, ...] goes to rank n; returns what they sent, in their order."""
    received: Tensor = _Exchanged.apply(group, parts)  # type: ignore[no-untyped-call]
    return received


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, parts: Tensor) -> Tensor:
        ctx.group = group
        sent = parts.contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, _exchange(ctx.group, gradients[0])


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, values: Tensor) -> Tensor:
        ctx.group, ctx.own = group, values.shape[1]
        parts = [torch.empty_like(values) for _ in range(group.size())]
        dist.all_gather(parts, values.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0].narrow(1, ctx.group.rank() * ctx.own, ctx.own)
