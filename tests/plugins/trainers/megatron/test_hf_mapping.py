"""Megatron's parameters hold the numbers of Hugging Face's tensors, on any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("megatron.core", exc_type=ImportError)

from rollcall_plugins.trainers.megatron.hf_config import Architecture
from rollcall_plugins.trainers.megatron.hf_mapping import (
    GateUp,
    HfTensor,
    ParameterMapping,
    QueryKeyValue,
    VocabularyRows,
    parameter_mappings,
)
from rollcall_plugins.trainers.megatron.hf_weights import own_slices

SMALL = Architecture(
    model_type="qwen3",
    layers=2,
    hidden=12,
    heads=8,
    groups=4,
    head_dim=3,
    intermediate=8,
    vocabulary=13,
    context=32,
    norm_epsilon=1e-6,
    rope_base=10000.0,
)


def marked(*names: str) -> Tensor:
    """One row for each name: numbers that tell where a row came from."""
    return torch.tensor([[float(int(name, 36))] for name in names])


def test_linear_qkv_holds_for_each_group_its_queries_its_key_and_its_value() -> None:
    tensors = tuple(HfTensor(name, (rows, 1), 0) for name, rows in (("q", 4), ("k", 2), ("v", 2)))
    mapping = QueryKeyValue(tensors, queries=2, head_dim=1)
    local = marked("q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1")
    parts = [marked("q0", "q1", "q2", "q3"), marked("k0", "k1"), marked("v0", "v1")]
    for got, want in zip(mapping.split(local), parts, strict=True):
        assert torch.equal(got, want)
    assert torch.equal(mapping.join(parts), local)


def test_linear_fc1_holds_the_gate_before_the_up_projection() -> None:
    mapping = GateUp((HfTensor("gate", (2, 1), 0), HfTensor("up", (2, 1), 0)))
    local = marked("g0", "g1", "u0", "u1")
    assert [part.tolist() for part in mapping.split(local)] == [
        marked("g0", "g1").tolist(),
        marked("u0", "u1").tolist(),
    ]
    assert torch.equal(mapping.join(mapping.split(local)), local)


def test_rows_beyond_the_vocabulary_are_zero_and_stay_inside() -> None:
    mapping = VocabularyRows((HfTensor("rows", (5, 1), 0),), own_rows=2, padded_rows=3)
    assert torch.equal(mapping.join([marked("a", "b")])[:, 0], torch.tensor([10.0, 11.0, 0.0]))
    (own,) = mapping.split(marked("a", "b", "z"))
    assert torch.equal(own, marked("a", "b"))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_the_ranks_hold_is_the_whole_model_once(size: int) -> None:
    ranks = [parameter_mappings(SMALL, rank=rank, size=size) for rank in range(size)]
    for name in ranks[0]:
        for number, tensor in enumerate(ranks[0][name].tensors):
            whole = torch.arange(torch.Size(tensor.shape).numel()).reshape(tensor.shape)
            pieces = [
                through_megatron(mappings[name], number, whole, rank, size)
                for rank, mappings in enumerate(ranks)
            ]
            if tensor.dim is None:
                assert all(torch.equal(piece, whole) for piece in pieces)
            else:
                assert torch.equal(torch.cat(pieces, tensor.dim), whole)


def through_megatron(
    mapping: ParameterMapping, number: int, whole: Tensor, rank: int, size: int
) -> Tensor:
    """A rank's part of tensor `number`, after it was in Megatron's parameter among the others."""
    parts = [
        torch.zeros(tensor.shape, dtype=whole.dtype)[own_slices(tensor, rank, size)]
        for tensor in mapping.tensors
    ]
    parts[number] = whole[own_slices(mapping.tensors[number], rank, size)]
    return mapping.split(mapping.join(parts))[number]


def test_ranks_without_a_row_of_a_short_vocabulary_hold_padding_alone() -> None:
    tensor = HfTensor("rows", (5, 1), 0)
    assert [tensor.part(rank, 4) for rank in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_a_pipeline_stage_counts_its_layers_from_zero() -> None:
    whole = parameter_mappings(SMALL, rank=0, size=1)
    second = parameter_mappings(SMALL, rank=0, size=1, first_layer=1)
    assert second["decoder.layers.0.mlp.linear_fc2.weight"].tensors == (
        HfTensor("model.layers.1.mlp.down_proj.weight", (12, 8), 1),
    )
    assert "decoder.layers.1.mlp.linear_fc2.weight" in whole
    assert "decoder.layers.1.mlp.linear_fc2.weight" not in second


def test_an_output_layer_that_is_tied_holds_the_embedding() -> None:
    untied = parameter_mappings(SMALL, rank=0, size=1)
    tied = parameter_mappings(replace(SMALL, tied=True), rank=0, size=1)
    assert untied["output_layer.weight"].tensors[0].name == "lm_head.weight"
    assert tied["output_layer.weight"].tensors[0].name == "model.embed_tokens.weight"
