"""What a language model of transformers computes besides its decoder: its own logits.

Some scale what their output layer gives, or bound it. So logits are made by the model's own forward
pass, with hidden states that are there already in the place of its decoder.
"""

from __future__ import annotations

import inspect
from copy import copy
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.models.transformers_api import CANNOT_BUILD, STORED, stored_otherwise
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.models.model_source import Head

OTHER = "name a model of another architecture"


class _Given(BaseModelOutput):
    """A decoder's output that has hidden states alone."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _GivenStates(nn.Module):
    """In the place of `decoder`: gives `states`, and keeps what it was called with in `seen`."""

    def __init__(self, decoder: nn.Module, states: Tensor) -> None:
        super().__init__()
        self.__dict__["_decoder"] = decoder  # not one of its modules
        self.states = states
        self.seen: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_decoder"], name)

    def forward(self, *first: Any, **named: Any) -> _Given:
        self.seen = dict(zip(("input_ids",), first, strict=False)) | named
        return _Given(last_hidden_state=self.states)


def own_logits(model: nn.Module, hidden: Tensor) -> Tensor:
    """The logits [rows, length, vocabulary] of `model` for hidden states [rows, length, width]."""
    built, _ = _without_decoder(model, hidden)
    return cast("Tensor", built(inputs_embeds=hidden, use_cache=False).logits)


def check_own_forward(model: nn.Module, *, head: Head, vocabulary: int) -> None:
    """`model_parts.check_parts` of a model of transformers."""
    built = cast("Any", model)
    problem, other = "", stored_otherwise(built)
    if other:
        problem = STORED.format(other)
    elif not isinstance(getattr(built.base_model, "layers", None), nn.ModuleList):
        problem = "has a decoder that is not one list of layers"
    elif head == "language-model":
        problem = _hindrance(built, vocabulary)
    elif not isinstance(getattr(built, "score", None), nn.Linear):
        problem = f"has no output layer `score` for the head {head}"
    if problem:
        kind = built.config.model_type
        raise SpecError(FIELD, f"the architecture {kind} cannot be trained: it {problem}; {OTHER}")


def _hindrance(model: Any, vocabulary: int) -> str:
    """Why the logits of this language model cannot be had of hidden states; "" if they can."""
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        return "has no cache of keys and values, which rollouts need"
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return "has no linear output layer"
    tokens = torch.zeros(1, 2, dtype=torch.long, device="meta")
    given = {"input_ids": tokens, "position_ids": torch.arange(2, device="meta")[None]}
    states = torch.zeros(1, 2, head.in_features, dtype=head.weight.dtype, device="meta")
    built, decoder = _without_decoder(model, states)
    try:
        logits = built(**given, use_cache=False).logits
    except CANNOT_BUILD as error:
        return f"has no output layer that can be computed by itself ({error!r})"
    # None and switches say nothing of the input.
    seen = {n: v for n, v in decoder.seen.items() if not isinstance(v, bool | None)}
    if seen.keys() != given.keys() or any(seen[name] is not given[name] for name in given):
        return "has a decoder that reads more than tokens and positions"
    if logits.shape != (1, 2, vocabulary):
        return f"has logits of the shape {list(logits.shape)} for two tokens"
    return ""


def _without_decoder(model: nn.Module, states: Tensor) -> tuple[Any, _GivenStates]:
    """A model of the same output layer, and what is in the place of its decoder."""
    name = cast("Any", model).base_model_prefix
    decoder = _GivenStates(cast("Any", model).base_model, states)
    built = copy(model)
    built._modules = {**model._modules, name: decoder}  # noqa: SLF001 - the model stays as it is
    return built, decoder
