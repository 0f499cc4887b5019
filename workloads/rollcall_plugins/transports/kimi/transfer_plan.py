"""Which operations transfer a version and which rank reads them, by checkpoint-engine's planner.

The plan puts as many buckets of the manifest as fit into one operation, and has the receiver of the
lowest rank read them for its node. A bucket larger than an operation is planned in pieces, because
checkpoint-engine splits nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from checkpoint_engine.data_types import MemoryBufferMetaList, MemoryBufferMetas, ParameterMeta
from checkpoint_engine.ps import _gen_h2d_buckets

from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer, Operation, OperationGroup
from rollcall_runtime.sync.memory.buffers import Buffer

_SENDER = 0
_PLACE = "node"


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Operations in order, each a group of pieces of buckets, and the rank that reads them."""

    reader: int
    operations: tuple[OperationGroup, ...]


def plan_transfer(
    manifest: WeightManifest, *, operation_bytes: int, receivers: Sequence[int]
) -> TransferPlan:
    """The plan of the receivers of one node. Each of them computes the same one.

    Raises RuntimeError if checkpoint-engine plans several readers, which it does for several
    senders only.
    """
    pieces = [
        Operation(first, min(first + operation_bytes, end), bucket, first + operation_bytes >= end)
        for bucket, (start, end) in enumerate(manifest.buckets())
        for first in range(start, end, operation_bytes)
    ]
    if not pieces:  # checkpoint-engine plans no empty checkpoint
        return TransferPlan(min(receivers), ())
    planned = _gen_h2d_buckets(
        {_SENDER: _memory(pieces, manifest.total_bytes)},
        operation_bytes,
        {_PLACE: set(receivers)},
        {"sender": {_SENDER}},
        list(receivers),
    )
    readers = {reader for reader, _, _ in planned}
    if len(readers) != 1:
        raise RuntimeError(f"checkpoint-engine plans the readers {sorted(readers)} for one node")
    groups = tuple(tuple(pieces[int(item.name)] for item in bucket.items) for *_, bucket in planned)
    return TransferPlan(readers.pop(), groups)


def _memory(pieces: Sequence[Operation], nbytes: int) -> MemoryBufferMetaList:
    """The sender's one buffer; the planner does not use its address."""
    metas = [
        ParameterMeta(
            name=str(index),
            dtype=torch.uint8,
            shape=torch.Size([piece.end - piece.start]),
            aligned_size=piece.end - piece.start,
        )
        for index, piece in enumerate(pieces)
    ]
    memory = MemoryBufferMetas(metas=metas, ptr=0, size=nbytes)
    return MemoryBufferMetaList(
        p2p_store_addr="", memory_buffer_metas_list=[memory], rdma_device=""
    )


class PlannedTransfer(BucketTransfer):
    """Transfers what was planned; an operation may hold several buckets."""

    def fill_planned(
        self, buffer: Buffer, manifest: WeightManifest, plan: TransferPlan, deadline: float
    ) -> None:
        """Fill the buffer and compare each bucket's digest; DigestMismatchError."""
        self.fill_groups(buffer, manifest, plan.operations, deadline)
