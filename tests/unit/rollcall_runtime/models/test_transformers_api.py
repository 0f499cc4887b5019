"""What transformers 4.57 has in another way: doubles have what its classes have.

Their source is modeling_rope_utils.py and modeling_utils.py of transformers 4.57.6, with which the
tests of this folder were run, too (docs/devices.md).
"""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollcall_runtime.models import transformers_api
from rollcall_runtime.models.transformers_api import (
    attention_of,
    config_values,
    restore_buffers,
    tied_weights,
)


class Rotary(nn.Module):
    """The frequencies are a buffer that no file holds, and an attribute beside it."""

    inv_freq: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(base=10.0)
        self.register_buffer("inv_freq", torch.empty(3, device="meta"), persistent=False)
        self.original_inv_freq = self.inv_freq
        self.attention_scaling = 0.0

    def rope_init_fn(self, config: Any, device: str) -> tuple[Tensor, float]:
        return torch.full((3,), config.base, device=device), 0.5


class Model(nn.Module):
    def __init__(self, *, tie: bool) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=tie)
        self._tied_weights_keys = ["lm_head.weight"]
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(4, 2), "rotary": Rotary()})

    def get_input_embeddings(self) -> nn.Module:
        return self.model["embed_tokens"]


def test_frequencies_are_computed_where_the_module_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transformers_api, "_RELEASE", 4)
    model = Model(tie=True)
    restore_buffers(model)
    rotary: Any = model.model["rotary"]
    assert rotary.inv_freq.tolist() == rotary.original_inv_freq.tolist() == [10.0] * 3
    assert rotary.attention_scaling == 0.5
    assert "model.rotary.inv_freq" not in model.state_dict()


def test_a_buffer_that_nothing_computes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory it was given holds anything: falcon_h1 would compute with that."""
    monkeypatch.setattr(transformers_api, "_RELEASE", 5)
    model: Any = Model(tie=True)
    model._init_weights = lambda module: (
        module.inv_freq.fill_(1.0) if isinstance(module, Rotary) else None
    )
    for buffer in (torch.empty(2), torch.empty(2, dtype=torch.long)):
        model.register_buffer("scales", buffer, persistent=False)
        with pytest.raises(ValueError, match=r"nothing computes its buffer .*scales"):
            restore_buffers(model)


@pytest.mark.skipif(
    transformers_api._RELEASE < 5, reason="transformers 4.57 writes an infinite number as Infinity"
)
def test_an_infinite_number_is_read_as_transformers_writes_it() -> None:
    written = {"time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert config_values(written) == {"time_step_limit": [0.0, math.inf]}


def test_tied_weights_are_those_of_the_class_if_the_configuration_ties() -> None:
    assert tied_weights(Model(tie=True)) == {"lm_head.weight": "model.embed_tokens.weight"}
    assert tied_weights(Model(tie=False)) == {}


def test_scores_that_are_bounded_are_never_left_to_torch() -> None:
    """4.57 has torch's attention for gemma2, and does not bound the scores in it."""
    has, has_not = SimpleNamespace(_supports_sdpa=True), SimpleNamespace(_supports_sdpa=False)
    plain, bounded = SimpleNamespace(), SimpleNamespace(attn_logit_softcapping=50.0)
    assert attention_of(has, plain) == "sdpa"
    assert attention_of(has_not, plain) == attention_of(has, bounded) == "eager"


LLAMA3 = {"rope_type": "llama3", "factor": 8.0}


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (
            {**LLAMA3, "rope_theta": 5e5},
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        ),
        ({"rope_type": "default", "rope_theta": 1e6}, {"rope_theta": 1e6}),
    ],
)
def test_positions_are_placed_as_the_file_says(
    monkeypatch: pytest.MonkeyPatch, rope: dict[str, Any], expected: dict[str, Any]
) -> None:
    values = {"model_type": "llama", "rope_parameters": rope}
    monkeypatch.setattr(transformers_api, "_RELEASE", 5)
    assert config_values(values) == values, "it knows them"
    monkeypatch.setattr(transformers_api, "_RELEASE", 4)
    assert config_values(values) == {"model_type": "llama", **expected}
    assert config_values({"model_type": "llama"}) == {"model_type": "llama"}
