"""Hidden states and output layer give what the whole model gives, in padded and packed rows."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers.masking_utils import find_packed_sequence_indices

from rollcall_runtime.models.model_parts import hidden_states, layers, output_layer
from rollcall_runtime.models.open_model import open_model
from tests.engines.tiny_models import ARCHITECTURES, LETTERS, write_tiny_model

LENGTHS = (5, 1, 7)


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


def test_packed_rows_need_positions_that_restart(model: nn.Module, sequences: list[Tensor]) -> None:
    packed = torch.cat(sequences)[None]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    found = output_layer(model)(hidden_states(model, packed, positions=positions))[0]
    for part, tokens in zip(found.split(LENGTHS), sequences, strict=True):
        torch.testing.assert_close(part, whole(model, tokens), atol=1e-5, rtol=0)


def test_without_them_a_sequence_would_see_the_one_before(
    model: nn.Module, sequences: list[Tensor]
) -> None:
    found = output_layer(model)(hidden_states(model, torch.cat(sequences)[None]))[0]
    last = found.split(LENGTHS)[-1]
    assert not torch.allclose(last, whole(model, sequences[-1]), atol=1e-2)


def test_packed_and_padded_rows_may_stand_together(
    model: nn.Module, sequences: list[Tensor]
) -> None:
    first, second, third = sequences
    rows = nn.utils.rnn.pad_sequence([torch.cat([first, second]), third], batch_first=True)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 0], [0, 1, 2, 3, 4, 5, 6]])
    found = output_layer(model)(hidden_states(model, rows, positions=positions))
    for part, tokens in ((found[0, :5], first), (found[0, 5:6], second), (found[1], third)):
        torch.testing.assert_close(part, whole(model, tokens), atol=1e-5, rtol=0)


def test_transformers_recognises_packed_rows_by_their_positions() -> None:
    """What `hidden_states` relies on."""
    packed = torch.tensor([[0, 1, 0, 0, 1, 2]])
    found = find_packed_sequence_indices(packed)
    assert found is not None
    assert found.tolist() == [[0, 0, 1, 2, 2, 2]]
    assert find_packed_sequence_indices(torch.arange(6)[None]) is None


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
