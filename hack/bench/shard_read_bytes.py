"""How many bytes a tensor-parallel rank reads, by size of the buckets.

    python -m hack.bench.shard_read_bytes

Nothing is sent: the shapes of a decoder of eight billion parameters (32 layers, 4096 wide, grouped
query attention, bf16) are laid out as the trainer does, and buckets are selected as receivers do.
Projections into heads and into the hidden layer, and the vocabulary, are cut along rows; those back
are cut along columns, so that a rank takes them whole.
"""

import argparse
import json
from dataclasses import dataclass

import torch

from rollcall_protocol.wire.weight_manifest import DIGEST_CHARACTERS, WeightManifest
from rollcall_runtime.sync.weights.shards import Rows, RowShard, Shard, select
from rollcall_runtime.sync.weights.snapshots import lay_out

_LAYERS, _WIDTH, _HIDDEN, _HEADS, _VOCABULARY = 32, 4096, 14336, 1024, 128256
_BY_ROWS = ("q", "k", "v", "gate", "up", "embed", "head")


@dataclass(frozen=True, slots=True)
class TensorParallel(Shard):
    """A rank as inference engines have it."""

    cut: RowShard

    @property
    def key(self) -> str:
        return self.cut.key

    def rows(self, name: str, shape: tuple[int, ...]) -> Rows | None:
        return self.cut.rows(name, shape) if name.rpartition(".")[2] in _BY_ROWS else None


def model() -> list[tuple[str, torch.Tensor]]:
    """The shapes, in the order in which such models list them."""
    layer = {
        "q": (_WIDTH, _WIDTH),
        "k": (_HEADS, _WIDTH),
        "v": (_HEADS, _WIDTH),
        "o": (_WIDTH, _WIDTH),
        "gate": (_HIDDEN, _WIDTH),
        "up": (_HIDDEN, _WIDTH),
        "down": (_WIDTH, _HIDDEN),
        "norm1": (_WIDTH,),
        "norm2": (_WIDTH,),
    }
    shapes: dict[str, tuple[int, ...]] = {"embed": (_VOCABULARY, _WIDTH)}
    for number in range(_LAYERS):
        shapes |= {f"{number}.{name}": shape for name, shape in layer.items()}
    shapes |= {"norm": (_WIDTH,), "head": (_VOCABULARY, _WIDTH)}
    return [
        (name, torch.empty(shape, dtype=torch.bfloat16, device="meta"))
        for name, shape in shapes.items()
    ]


def share(bucket_bytes: int, ranks: int) -> float:
    """The part of all bytes that the busiest rank reads."""
    specs, total = lay_out(model())
    manifest = WeightManifest(
        specs, total, bucket_bytes, ("0" * DIGEST_CHARACTERS,) * -(-total // bucket_bytes)
    )
    parts = [TensorParallel(RowShard(rank, ranks)) for rank in range(ranks)]
    return max(select(manifest, part).manifest.total_bytes for part in parts) / total


def main() -> None:
    """Print a line of JSON for each size of buckets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buckets", type=int, nargs="+", default=[64, 16, 8, 4, 1], metavar="MiB")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    for size in options.buckets:
        found = {ranks: round(share(size << 20, ranks), 3) for ranks in options.ranks}
        print(json.dumps({"bucket_mib": size, "share_of_bytes": found}))


if __name__ == "__main__":
    main()
