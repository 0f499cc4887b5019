"""A model is filled where its parameters are: whole, or in the part that this rank holds."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from rollcall_protocol.wire.weight_manifest import RowRange
from rollcall_runtime.models.model_parts import layers
from rollcall_runtime.models.model_source import ModelSource
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.weight_loading import WeightReader, fill, materialise
from tests.process.engines.tiny_models import write_tiny_model

RANKS, RANK = 4, 1


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> ModelSource:
    """Made before there are ranks, of which transformers lets only the first save."""
    return open_model(str(write_tiny_model(tmp_path / "m", tied=request.param)))


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """The second of four ranks, whose collectives do nothing."""
    init_process_group("fake", rank=RANK, world_size=RANKS, store=FakeStore())
    yield
    destroy_process_group()


class CountingReader(WeightReader):
    """Passes on what another reader reads, and adds up its bytes."""

    def __init__(self, inner: WeightReader) -> None:
        self._inner, self.bytes = inner, 0

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._inner.shapes

    def read(self, name: str, rows: RowRange | None = None) -> Tensor:
        tensor = self._inner.read(name, rows)
        self.bytes += tensor.nbytes
        return tensor


def test_materialised_parameters_have_memory_and_buffers_keep_their_values(
    source: ModelSource,
) -> None:
    model = source.build_empty()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    materialise(model, "cpu")
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    tied = "lm_head.weight" not in source.weights().shapes
    embedding = model.get_parameter("model.embed_tokens.weight")
    assert (model.get_parameter("lm_head.weight") is embedding) is tied


def test_a_model_sharded_by_fsdp2_reads_only_its_own_rows(
    source: ModelSource, four_ranks: None
) -> None:
    whole = source.build().state_dict()
    model = source.build_empty()
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    materialise(model, "cpu")
    reader = CountingReader(source.weights())
    fill(model, reader)
    for name, parameter in model.state_dict().items():
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.to_local(), whole[name].chunk(RANKS)[RANK]), name
    stored = sum(4 * torch.Size(shape).numel() for shape in reader.shapes.values())
    assert reader.bytes == stored / RANKS


@pytest.mark.parametrize(
    ("placements", "part"),
    [
        ((Replicate(), Shard(0)), lambda t: t.chunk(2)[1]),
        ((Shard(0), Shard(1)), lambda t: t.chunk(2)[0].chunk(2, 1)[1]),
        ((Replicate(), Replicate()), lambda t: t),
    ],
)
def test_a_tensor_on_two_dimensions_of_ranks_gets_its_part(
    four_ranks: None, placements: tuple[object, ...], part: object
) -> None:
    source = open_model("builtin:reverse-tiny")
    model = source.build(seed=1)
    wanted = model.get_parameter("embed.weight").detach().clone()
    mesh = init_device_mesh("cpu", (2, 2))  # this rank is (0, 1)
    empty = distribute_tensor(torch.zeros_like(wanted), mesh, placements, src_data_rank=None)  # type: ignore[arg-type]
    model.get_submodule("embed").weight = nn.Parameter(empty)
    fill(model, source.weights(seed=1))
    found = model.get_parameter("embed.weight")
    assert isinstance(found, DTensor)
    assert torch.equal(found.to_local(), part(wanted))  # type: ignore[operator]
