"""Prepared weights are copied to where those are that serve, or refused before anything changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollcall_plugins.inference.vllm.in_server.weight_copies import (
    LayoutChangedError,
    Pair,
    WeightCopies,
    WrongCopyError,
)


def layer(number: float, **attributes: Any) -> Any:
    """With a weight and a buffer of this number; attributes are tensors or other objects."""
    made: Any = nn.Module()
    made.weight = nn.Parameter(torch.full((2, 3), float(number)), requires_grad=False)
    made.register_buffer("scale", torch.full((2,), float(number)))
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def pair(serving: Any, new: Any, **more: bool) -> Pair:
    """`serving` and a shadow of it, which got what `new` has for its own."""
    shadow: Any = object.__new__(nn.Module)
    shadow.__dict__ = dict(serving.__dict__)
    for name in ("_parameters", "_buffers", *(new.__dict__.keys() - nn.Module().__dict__.keys())):
        shadow.__dict__[name] = new.__dict__[name]
    return Pair(serving, shadow, dict(serving.__dict__), **more)


def commit(*pairs: Pair, captured: bool = True) -> None:
    WeightCopies(pairs, captured=captured).apply()


def is_full_of(tensor: Tensor, number: float) -> bool:
    return torch.equal(tensor, torch.full_like(tensor, number))


def test_parameters_buffers_and_other_tensors_stay_where_they_are() -> None:
    serving = layer(1, transposed=torch.full((3,), 1.0))
    shadow = layer(2, transposed=torch.full((3,), 2.0))
    tensors = [serving.weight, serving.scale, serving.transposed]
    commit(pair(serving, shadow))
    now = [serving.weight, serving.scale, serving.transposed]
    assert all(one is other for one, other in zip(now, tensors, strict=True))
    assert all(is_full_of(tensor, 2) for tensor in tensors)


@pytest.mark.parametrize("captured", [False, True])
def test_nothing_changes_before_it_is_applied(*, captured: bool) -> None:
    serving, shadow = layer(1), layer(2)
    WeightCopies([pair(serving, shadow)], captured=captured)
    assert is_full_of(serving.weight, 1)


def test_what_is_prepared_stays_as_it_is_for_those_that_keep_it() -> None:
    shadow = layer(2)
    commit(pair(layer(1), shadow))
    assert is_full_of(shadow.weight, 2)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3, 2),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 3, dtype=torch.bfloat16),
    ],
    ids=["shape", "strides", "dtype"],
)
def test_another_layout_is_refused_where_graphs_are_captured_and_taken_else(other: Tensor) -> None:
    serving, shadow = layer(1), layer(2)
    shadow.weight = nn.Parameter(other, requires_grad=False)
    with pytest.raises(LayoutChangedError, match=r"weight of Module was float32 \(2, 3\) on cpu"):
        commit(pair(serving, shadow))
    assert is_full_of(serving.weight, 1)
    assert is_full_of(serving.scale, 1)
    commit(pair(serving, shadow), captured=False)
    assert serving.weight is shadow.weight


def test_an_object_that_graphs_do_not_see_is_refused_and_taken_else() -> None:
    serving, shadow = layer(1, packed=object()), layer(2, packed=object())
    made = pair(serving, shadow)
    with pytest.raises(LayoutChangedError, match=r"packed of Module was a object.*enforce-eager"):
        commit(made)
    commit(made, captured=False)
    assert serving.packed is shadow.packed


def test_plain_values_are_taken() -> None:
    serving, shadow = layer(1, factor=1.0, done=False), layer(2, factor=2.0, done=True)
    commit(pair(serving, shadow))
    assert serving.factor == 2.0
    assert serving.done


def test_an_object_that_both_share_stays() -> None:
    config = object()
    serving, shadow = layer(1, config=config), layer(2, config=config)
    commit(pair(serving, shadow))
    assert serving.config is config


def test_kernels_stay_and_read_the_weights_that_serve() -> None:
    kernel = object()
    serving, shadow = layer(1, kernel=kernel), layer(2, kernel=object())
    commit(pair(serving, shadow, has_kernels=True))
    assert serving.kernel is kernel
    assert is_full_of(serving.weight, 2)


def test_tied_weights_stay_tied() -> None:
    first, second, new, also_new = layer(1), layer(1), layer(2), layer(2)
    second.weight, also_new.weight = first.weight, new.weight
    commit(pair(first, new), pair(second, also_new))
    assert second.weight is first.weight
    assert is_full_of(first.weight, 2)


def test_weights_that_are_not_tied_any_more_are_refused() -> None:
    first, second = layer(1), layer(1)
    second.weight = first.weight
    with pytest.raises(LayoutChangedError, match="was shared by two layers, and is not any more"):
        commit(pair(first, layer(2)), pair(second, layer(3)))


@pytest.mark.parametrize("number", [2.0, float("nan")])
def test_a_copy_that_is_not_what_was_prepared_may_not_serve(
    monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    """Memory of devices fails; here a copy loses its last number."""

    def copy(target: Tensor, source: Tensor) -> None:
        target.data = source.data.clone()
        target.view(-1)[-1] = 0

    serving, shadow = layer(1), layer(number)
    monkeypatch.setattr(Tensor, "copy_", copy)
    with pytest.raises(WrongCopyError, match=r"another weight of Module, scale of Module than"):
        commit(pair(serving, shadow))


def test_numbers_that_are_none_are_copied_as_others_are() -> None:
    serving = layer(1)
    commit(pair(serving, layer(float("nan"))))
    assert bool(serving.weight.isnan().all())


def test_weights_that_lie_in_another_order_of_axes_are_copied_in_that() -> None:
    serving, shadow = layer(1), layer(2)
    for one, number in ((serving, 1.0), (shadow, 2.0)):
        one.weight = nn.Parameter(torch.full((3, 2), number).t(), requires_grad=False)
    commit(pair(serving, shadow))
    assert serving.weight.stride() == (1, 2)
    assert is_full_of(serving.weight, 2)
