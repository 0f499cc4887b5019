"""What torch's kernel for packed rows is asked, against a double of what its documentation says.

https://docs.pytorch.org/docs/stable/nn.attention.varlen.html (torch 2.13). The double computes each
sequence by itself, in float32 on a CPU; it does not show what the kernel computes on a GPU.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from rollcall_runtime.models import varlen_attention
from rollcall_runtime.models.sequence_attention import attend_by_sequence
from tests.unit.rollcall_runtime.models.test_sequence_attention import LAYOUT, LENGTHS, given


def kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """The double: tensors are [positions, heads, width]."""
    assert cu_seq_q.dtype == torch.int32
    assert cu_seq_q.tolist() == cu_seq_k.tolist()
    assert max_q == max_k == max(LENGTHS)
    left, right = window_size
    assert right == 0, "causal"
    mixed = []
    for start, end in pairwise(cu_seq_q.tolist()):
        of_query, of_key, of_value = (t[start:end].transpose(0, 1) for t in (query, key, value))
        place = torch.arange(end - start)
        mask = place[:, None] >= place
        if left >= 0:
            mask &= place[:, None] - place <= left
        mixed.append(
            F.scaled_dot_product_attention(
                of_query, of_key, of_value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
            )
        )
    return torch.cat([part.transpose(0, 1) for part in mixed])


def flash_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *places: Any,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    deterministic: bool,
) -> Tensor:
    """Of flash_attn 2.8: heads of keys are fewer without a word, and `causal` is said."""
    assert causal
    assert not deterministic
    scale, grouped = softmax_scale, key.shape[1] != query.shape[1]
    return kernel(
        *(query, key, value, *places), scale=scale, window_size=window_size, enable_gqa=grouped
    )


@pytest.mark.parametrize("attention", ["auto", "varlen", "flash_attention_2"])
@pytest.mark.parametrize("window", [None, 1, 3, 7])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_outputs_and_gradients_are_those_of_one_sequence_after_the_other(
    monkeypatch: pytest.MonkeyPatch, window: int | None, key_heads: int, attention: str
) -> None:
    one, other = given(key_heads=key_heads), given(key_heads=key_heads)
    want = attend_by_sequence(*other, LAYOUT, window=window, scale=0.3)
    monkeypatch.setattr(varlen_attention, "_torchs_kernel", lambda: kernel)
    monkeypatch.setattr(varlen_attention, "_flash_kernel", lambda: flash_kernel)
    monkeypatch.setattr(varlen_attention, "is_usable", lambda *_, **__: True)
    layout = replace(LAYOUT, attention=attention)
    found = attend_by_sequence(*one, layout, window=window, scale=0.3)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=0)
    for output in (found, want):
        output.square().sum().backward()  # type: ignore[no-untyped-call]
    for tensor, expected in zip(one, other, strict=True):
        torch.testing.assert_close(tensor.grad, expected.grad, atol=1e-5, rtol=0)


class OnGpu:
    """Of a query: what is asked before the kernel is."""

    is_cuda = True

    def __init__(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.shape, self.dtype = shape, dtype


def usable(query: object, attention: str = "auto", *, dropout: float = 0.0) -> bool:
    return varlen_attention.is_usable(query, attention, dropout=dropout)  # type: ignore[arg-type]


def test_it_is_used_for_packed_rows_of_two_byte_numbers_on_a_gpu_alone() -> None:
    assert varlen_attention._torchs_kernel() is not None, "torch 2.13 has it"
    assert usable(OnGpu(1, 4, 99, 128))
    assert not usable(torch.zeros(1, 4, 99, 128, dtype=torch.bfloat16)), "on a CPU"
    assert not usable(OnGpu(1, 4, 99, 128, dtype=torch.float32))
    assert not usable(OnGpu(2, 4, 99, 128)), "rows that are not packed"
    assert not usable(OnGpu(1, 4, 99, 12)), "its heads are multiples of 8 wide"
    assert not usable(OnGpu(1, 4, 99, 512))
    assert not usable(OnGpu(1, 4, 99, 128), dropout=0.1)
    assert not usable(OnGpu(1, 4, 99, 128), "sdpa")
    assert usable(OnGpu(1, 4, 99, 128), "varlen")
    assert not usable(OnGpu(1, 4, 99, 128), "flash_attention_2"), "no image has the package"


@pytest.mark.parametrize(
    ("device", "two_byte_numbers", "why"),
    [
        ("cuda", True, ""),
        ("cpu", True, "needs a GPU"),
        ("npu", True, "needs a GPU"),
        ("cuda", False, "needs precision: bf16"),
    ],
)
def test_it_is_said_why_a_trainer_does_without_it(
    device: str, two_byte_numbers: bool, why: str
) -> None:
    found = varlen_attention.lack("auto", device=device, two_byte_numbers=two_byte_numbers)
    assert found.endswith(why)
    assert bool(found) == bool(why)


def test_what_is_asked_for_is_named_where_it_cannot_be_had() -> None:
    flash = varlen_attention.lack("flash_attention_2", device="cuda", two_byte_numbers=True)
    assert flash == "the package flash-attn is not in this image"
    sdpa = varlen_attention.lack("sdpa", device="cuda", two_byte_numbers=True)
    assert sdpa == "attention is sdpa"


def test_a_torch_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen_attention, "_torchs_kernel", lambda: None)
    found = varlen_attention.lack("auto", device="cuda", two_byte_numbers=True)
    assert found == f"torch {torch.__version__} has no kernel for several sequences that fits"


def test_where_bits_must_be_the_same_each_time_it_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert not usable(OnGpu(1, 4, 99, 128))
        found = varlen_attention.lack("auto", device="cuda", two_byte_numbers=True)
        assert "algorithm.deterministic" in found
        monkeypatch.setattr(varlen_attention, "_flash_kernel", lambda: flash_kernel)
        assert usable(OnGpu(1, 4, 99, 128), "flash_attention_2"), "which it can be asked for"
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_a_torch_whose_kernel_has_other_arguments_does_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def former(query: Tensor, *, is_causal: bool = False) -> Tensor:  # torch 2.10
        return query * is_causal

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", former)
    assert varlen_attention._torchs_kernel.__wrapped__() is None
