"""Attention of each sequence by itself is that under a mask, and computes no other pairs."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from rollcall_runtime.models import sequence_attention
from rollcall_runtime.models.sequence_attention import RowLayout, attend_by_sequence
from rollcall_runtime.train.engines.common.compiling import compile_layers

LENGTHS = (5, 1, 7)
LAYOUT = RowLayout(LENGTHS)


def given(*, key_heads: int = 4, rows: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Query with four heads of width 8, key, value."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(rows, heads, sum(LENGTHS), 8) for heads in (4, key_heads, key_heads)]
    query, key, value = (
        torch.randn(shape, generator=generator).requires_grad_() for shape in shapes
    )
    return query, key, value


def under_a_mask(query: Tensor, key: Tensor, value: Tensor, *, window: int | None) -> Tensor:
    sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    place = torch.arange(len(sequence))
    mask = (sequence[:, None] == sequence) & (place[:, None] >= place)
    if window is not None:
        mask &= place[:, None] - place < window
    heads = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(heads, 1) for tensor in (key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 3, 7])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("rows", [1, 2])
def test_outputs_and_gradients_are_those_under_a_mask(
    window: int | None, key_heads: int, rows: int
) -> None:
    one, other = given(key_heads=key_heads, rows=rows), given(key_heads=key_heads, rows=rows)
    found = attend_by_sequence(*one, LAYOUT, window=window)
    want = under_a_mask(*other, window=window)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=0)
    for output in (found, want):
        output.square().sum().backward()  # type: ignore[no-untyped-call]
    for tensor, expected in zip(one, other, strict=True):
        torch.testing.assert_close(tensor.grad, expected.grad, atol=1e-5, rtol=0)


def test_the_cost_is_the_sum_of_the_squares_of_the_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[tuple[int, int]] = []
    compute = F.scaled_dot_product_attention

    def counted(query: Tensor, key: Tensor, *others: Any, **options: Any) -> Tensor:
        computed.append((query.shape[2], key.shape[2]))
        return compute(query, key, *others, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    attend_by_sequence(*given(), LAYOUT)
    assert computed == [(length, length) for length in LENGTHS]


def test_scale_is_what_products_are_multiplied_by() -> None:
    query, key, value = given()
    found = attend_by_sequence(query, key, value, LAYOUT, scale=0.5)
    same = attend_by_sequence(query * 0.5 * 8**0.5, key, value, LAYOUT)
    torch.testing.assert_close(found, same, atol=1e-6, rtol=0)


@pytest.mark.slow  # it loads torch's compiler
def test_layers_are_not_compiled_again_for_another_number_of_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sequence_attention, "_attend", sequence_attention._attend)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "compile", lambda compiled: compiled)
        compile_layers([])
    graphs: list[object] = []

    def backend(graph: Any, _example: object) -> Any:
        graphs.append(graph)
        return graph

    @torch.compile(backend=backend)
    def layer(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout) -> Tensor:
        return attend_by_sequence(query * 2, key, value, layout) + 1

    counts = []
    for lengths in ((16,), (5, 11), (4, 4, 8)):
        query, key, value = (torch.randn(1, 2, 16, 8) for _ in range(3))
        want = attend_by_sequence(query * 2, key, value, RowLayout(lengths)) + 1
        torch.testing.assert_close(layer(query, key, value, RowLayout(lengths)), want)
        counts.append(len(graphs))
    assert counts[0] > 0
    assert counts == counts[:1] * 3
