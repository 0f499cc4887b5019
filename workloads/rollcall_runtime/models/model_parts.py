"""The parts of a built model that training engines handle: layers, hidden states, output layer.

Rows that are padded on the right need no mask: no position of a causal model sees what comes after
it, and what the padding computes is not read. Rows that are packed one after the other need
position ids that restart at 0; from these transformers makes a mask in which each sequence sees
itself alone (`transformers.masking_utils.find_packed_sequence_indices`), as the built-in decoder
does. With attention by torch's sdpa that mask has a row and a column for each token of the packed
row, so memory and time of attention grow with the square of its length; flash attention makes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rollcall_runtime.models.tiny_decoder import TinyDecoder

if TYPE_CHECKING:
    from torch import Tensor, nn


def layers(model: nn.Module) -> list[nn.Module]:
    """The model's decoder layers, in their order: units to shard, recompute and compile."""
    if isinstance(model, TinyDecoder):
        return list(model.blocks)
    return list(cast("Any", model).base_model.layers)


def output_layer(model: nn.Module) -> nn.Linear:
    """From hidden states to logits [vocabulary], or to the one number of another head."""
    if isinstance(model, TinyDecoder):
        return model.output_layer
    found = getattr(model, "score", None) or cast("Any", model).get_output_embeddings()
    return cast("nn.Linear", found)


def hidden_states(model: nn.Module, tokens: Tensor, *, positions: Tensor | None = None) -> Tensor:
    """What the output layer reads: [rows, length, width] for tokens [rows, length].

    `positions` [rows, length] are needed for packed rows alone; without them rows count from 0.
    """
    if isinstance(model, TinyDecoder):
        return model.hidden_states(tokens, positions=positions)
    output = cast("Any", model).base_model(
        input_ids=tokens, position_ids=positions, use_cache=False
    )
    return cast("Tensor", output.last_hidden_state)
