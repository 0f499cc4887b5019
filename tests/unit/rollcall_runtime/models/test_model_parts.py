"""Hidden states and output layer give what the whole model gives, in padded and packed rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig

from rollcall_runtime.models.model_parts import (
    hidden_states,
    layers,
    output_layer,
    prepare_row_layouts,
)
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.sequence_attention import RowLayout
from tests.process.engines.tiny_models import (
    ARCHITECTURES,
    LETTERS,
    tiny_config,
    tiny_model,
    write_tiny_model,
)

LENGTHS = (5, 1, 7)
LAYOUT = RowLayout(LENGTHS)
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]


@pytest.fixture(params=["tiny", *ARCHITECTURES])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> nn.Module:
    """A decoder of each kind with a vocabulary of 13 at least."""
    if request.param == "tiny":
        model = open_model("builtin:reverse-tiny").build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4)  # far from uniform
        return model
    directory = write_tiny_model(tmp_path / "m", request.param, characters=LETTERS)
    return open_model(str(directory)).build()


@pytest.fixture
def sequences() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 13, (length,), generator=generator) for length in LENGTHS]


def whole(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits [length, vocabulary] of one sequence by itself, by the model's own forward pass."""
    output = model(tokens[None])
    found: Tensor = getattr(output, "logits", output)
    return found[0]


def test_the_output_layer_makes_logits_of_hidden_states(
    model: nn.Module, sequences: list[Tensor]
) -> None:
    hidden = hidden_states(model, sequences[0][None])
    assert torch.equal(output_layer(model)(hidden)[0], whole(model, sequences[0]))


def test_rows_padded_on_the_right_need_no_mask(model: nn.Module, sequences: list[Tensor]) -> None:
    padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=7)
    found = output_layer(model)(hidden_states(model, padded))
    for row, tokens in zip(found, sequences, strict=True):
        torch.testing.assert_close(row[: len(tokens)], whole(model, tokens), atol=1e-5, rtol=0)


def packed_logits(model: nn.Module, sequences: list[Tensor]) -> Sequence[Tensor]:
    """Logits of each sequence, computed in one row."""
    prepare_row_layouts(model)
    packed = torch.cat(sequences)[None]
    hidden = hidden_states(model, packed, positions=POSITIONS, layout=LAYOUT)
    found: Tensor = output_layer(model)(hidden)
    return torch.split(found[0], list(LENGTHS))


def test_a_sequence_of_a_packed_row_sees_itself_alone(
    model: nn.Module, sequences: list[Tensor]
) -> None:
    alone = [whole(model, tokens) for tokens in sequences]
    for part, expected in zip(packed_logits(model, sequences), alone, strict=True):
        torch.testing.assert_close(part, expected, atol=1e-5, rtol=0)


def test_without_a_layout_a_sequence_would_see_the_one_before(
    model: nn.Module, sequences: list[Tensor]
) -> None:
    alone = whole(model, sequences[-1])
    prepare_row_layouts(model)
    packed = torch.cat(sequences)[None]
    found = output_layer(model)(hidden_states(model, packed, positions=POSITIONS))[0]
    assert not torch.allclose(found[-LENGTHS[-1] :], alone, atol=1e-2)


def window(architecture: str, **own: Any) -> nn.Module:
    """A model in which a position of one layer sees itself and two before it."""
    config = tiny_config(architecture, vocabulary=16)  # type: ignore[arg-type]
    values = {**config.to_dict(), "sliding_window": 3, "use_sliding_window": True, **own}
    model: nn.Module = tiny_model(AutoConfig.for_model(**values))
    return model


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_a_sliding_window_is_heeded_in_packed_rows(
    architecture: str, sequences: list[Tensor]
) -> None:
    kinds = {"layer_types": ["full_attention", "sliding_attention"], "max_window_layers": 1}
    model = window(architecture, **kinds)
    alone = [whole(model, tokens) for tokens in sequences]
    for part, expected in zip(packed_logits(model, sequences), alone, strict=True):
        torch.testing.assert_close(part, expected, atol=1e-5, rtol=0)
    everything = window(architecture, layer_types=["full_attention"] * 2)
    assert not torch.allclose(alone[-1], whole(everything, sequences[-1]), atol=1e-3)


def test_other_architectures_keep_the_masks_of_transformers(sequences: list[Tensor]) -> None:
    """gemma2 bounds attention's logits too, which attention by sequence does not."""
    config = AutoConfig.for_model(
        "gemma2",
        vocab_size=16,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=3,
        attn_implementation="eager",
        final_logit_softcapping=None,
    )
    model = tiny_model(config)
    alone = [whole(model, tokens) for tokens in sequences]
    for part, expected in zip(packed_logits(model, sequences), alone, strict=True):
        torch.testing.assert_close(part, expected, atol=1e-5, rtol=0)


def test_layers_are_the_decoders_in_their_order(model: nn.Module) -> None:
    found = layers(model)
    assert len(found) == 2
    names = [name for name, module in model.named_modules() if module in found]
    assert names in (["blocks.0", "blocks.1"], ["model.layers.0", "model.layers.1"])


@pytest.mark.parametrize("head", ["value", "sequence-classification"])
def test_other_heads_give_one_number_at_each_position(tmp_path: Path, head: str) -> None:
    for path in ("builtin:reverse-tiny", str(write_tiny_model(tmp_path / "m"))):
        built = open_model(path).build(head=head, seed=1)  # type: ignore[arg-type]
        tokens = torch.zeros(2, 5, dtype=torch.long)
        assert output_layer(built)(hidden_states(built, tokens)).shape == (2, 5, 1)
