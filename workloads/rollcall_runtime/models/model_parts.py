"""The parts of a built model that training engines handle: layers, hidden states, output layer.

Rows that are padded on the right need no mask: no position of a causal model sees what comes after
it, and what the padding computes is not read. Rows that are packed one after the other need
position ids that restart at 0, and the lengths of the sequences: each of these sees itself alone,
and attention costs the sum of the squares of their lengths (`sequence_attention`). For those of
`MASKED_BY_POSITIONS` transformers makes a mask of the position ids instead
(`transformers.masking_utils.find_packed_sequence_indices`), with a row and a column for each token
of the packed row, so memory and time of attention grow with the square of its whole length. In
others a sequence may see the one before it: some make no such mask, or keep a state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rollcall_runtime.models.sequence_attention import BY_SEQUENCE
from rollcall_runtime.models.tiny_decoder import TinyDecoder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollcall_runtime.models.model_source import Head
    from rollcall_runtime.models.sequence_attention import RowLayout

MASKED_BY_POSITIONS = frozenset(
    {
        "cohere",
        "cohere2",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm4",
        "granite",
        "mistral",
        "olmo2",
        "phi",
        "phi3",
        "smollm3",
    }
)
"""Architectures of which it was tested that masks keep the sequences of packed rows apart."""


def check_parts(model: nn.Module, *, head: Head, vocabulary: int) -> None:
    """SpecError if a model that was built empty cannot be trained with these functions.

    It can if its forward pass gives its decoder, a list of layers, tokens and positions as they are
    and nothing else, and makes its output of what comes back.
    """
    if not isinstance(model, TinyDecoder):
        # The model is of transformers, which takes seconds to import.
        from rollcall_runtime.models.own_forward import check_own_forward  # noqa: PLC0415

        check_own_forward(model, head=head, vocabulary=vocabulary)


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


def logits(model: nn.Module, hidden: Tensor) -> Tensor:
    """What a language model's own forward pass makes of hidden states [rows, length, width].

    [rows, length, vocabulary]; some models scale or bound what their output layer gives.
    """
    if isinstance(model, TinyDecoder):
        return cast("Tensor", model.output_layer(hidden))
    # The model is of transformers, which takes seconds to import.
    from rollcall_runtime.models.own_forward import own_logits  # noqa: PLC0415

    return own_logits(model, hidden)


def prepare_row_layouts(model: nn.Module) -> bool:
    """Have `hidden_states` read its `layout`; False where the architecture does not allow it."""
    if isinstance(model, TinyDecoder):
        return True
    # The model is of transformers, which takes seconds to import.
    from rollcall_runtime.models.hugging_face_attention import (  # noqa: PLC0415
        use_attention_by_sequence,
    )

    return use_attention_by_sequence(model)


def masks_packed_rows(model: nn.Module) -> bool:
    """Whether sequences of a packed row see themselves alone without a layout, too."""
    config = cast("Any", model).config
    return getattr(config, "model_type", "") in MASKED_BY_POSITIONS


def attention_heads(model: nn.Module) -> int:
    """How many heads of queries each layer has."""
    config = cast("Any", model).config
    return int(config.heads if isinstance(model, TinyDecoder) else config.num_attention_heads)


def hidden_states(
    model: nn.Module,
    tokens: Tensor,
    *,
    positions: Tensor | None = None,
    layout: RowLayout | None = None,
) -> Tensor:
    """What the output layer reads: [rows, length, width] for tokens [rows, length].

    Rows that are packed, or that ranks share, need `positions` [rows, length] (without them rows
    count from 0), a `layout`, and a model that `prepare_row_layouts` has seen.
    """
    if isinstance(model, TinyDecoder):
        return model.hidden_states(tokens, positions=positions, layout=layout)
    built = cast("Any", model)
    by_sequence = built.config._attn_implementation == BY_SEQUENCE  # noqa: SLF001 - no other way
    output = built.base_model(
        input_ids=tokens,
        position_ids=positions,
        use_cache=False,
        **({"row_layout": layout} if by_sequence else {}),
    )
    return cast("Tensor", output.last_hidden_state)
