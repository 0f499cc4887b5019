"""Which operations move a version, and who reads them: as checkpoint-engine plans its buckets.

The plan puts as many buckets of the manifest as fit into one operation, and has the receiver of the
lowest rank read them for its node. Where a bucket is larger than an operation its pieces are
planned, because checkpoint-engine cuts nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from checkpoint_engine.data_types import MemoryBufferMetaList, MemoryBufferMetas, ParameterMeta
from checkpoint_engine.ps import _gen_h2d_buckets

from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer, Operation
from rollcall_runtime.sync.memory.buffers import Buffer

_SENDER = 0
_PLACE = "node"


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations in order, each a row of pieces of buckets, and the rank that reads them."""

    reader: int
    operations: tuple[tuple[Operation, ...], ...]


def plan(manifest: WeightManifest, *, operation_bytes: int, receivers: Sequence[int]) -> Plan:
    """What the receivers of one node do. Every one of them comes to the same plan.

    Raises RuntimeError if checkpoint-engine plans several readers, which it does for several
    senders only.
    """
    pieces = [
        Operation(first, min(first + operation_bytes, end), bucket, first + operation_bytes >= end)
        for bucket, (start, end) in enumerate(manifest.buckets())
        for first in range(start, end, operation_bytes)
    ]
    if not pieces:  # checkpoint-engine plans no empty checkpoint
        return Plan(min(receivers), ())
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
    rows = tuple(tuple(pieces[int(item.name)] for item in bucket.items) for *_, bucket in planned)
    return Plan(readers.pop(), rows)


def _memory(pieces: Sequence[Operation], nbytes: int) -> MemoryBufferMetaList:
    """The sender's one buffer; its address is not asked for here."""
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


class PlannedMover(BucketTransfer):
    """Moves what was planned; an operation may hold several buckets."""

    def take(self, buffer: Buffer, manifest: WeightManifest, plan: Plan, deadline: float) -> None:
        """Fill the buffer and compare each bucket's CRC-32; ChecksumMismatchError."""
        self.fill_rows(buffer, manifest, plan.operations, deadline)
