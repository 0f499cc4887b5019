"""Responses that a trainer asks of the coordinator: the request, and what has come of it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from rollcall.errors import RollcallError
from rollcall.results import ResponseGroup, SampledResponse
from rollcall_protocol.sampling_config import MIN_TEMPERATURE, SamplingConfig
from rollcall_protocol.wire.external_trainer import Generated, GenerateResponses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEED_LIMIT = 2**63


class AskedResponses:
    """`n` responses to each of `prompts`; the arguments are those of `Trainer.generate`."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = 0,
        stop: str | Sequence[str] | None = (),
        stop_token_ids: Sequence[int] | None = (),
        seed: int | None = None,
    ) -> None:
        """RollcallError names what cannot be asked for."""
        self._prompts = tuple(tuple(prompt) for prompt in prompts)
        if n < 1:
            raise RollcallError(f"generate: n is {n}; ask for 1 response or more")
        for number, prompt in enumerate(self._prompts):
            if not prompt:
                raise RollcallError(f"generate: prompt {number} is empty; begin it with a token")
            if not all(type(token) is int and token >= 0 for token in prompt):
                raise RollcallError(
                    f"generate: prompt {number} is not a list of token ids; tokenize it first"
                )
        if 0 <= temperature < MIN_TEMPERATURE:  # the likeliest token, as with 0
            temperature, top_p, top_k = 1.0, 1.0, 1
        try:
            self._sampling = SamplingConfig(
                max_tokens=max_tokens or 0,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k or 0,
                stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
                stop_token_ids=tuple(stop_token_ids or ()),
            )
        except ValueError as error:
            raise RollcallError(f"generate: {error}") from error
        self._seed = secrets.randbelow(SEED_LIMIT) if seed is None else seed % SEED_LIMIT
        self._found: list[list[SampledResponse | None]] = [[None] * n for _ in self._prompts]
        self._n = n

    def message(self, number: int) -> GenerateResponses:
        """The request of this number."""
        return GenerateResponses(number, self._prompts, self._n, self._sampling, self._seed)

    def take(self, piece: Generated) -> None:
        """One response has come."""
        made = piece.response
        sample = SampledResponse(made.tokens, made.logprobs, made.versions)
        self._found[piece.prompt][piece.sample] = sample

    def groups(self) -> list[ResponseGroup]:
        """All of them, in the order of the prompts. RollcallError if one did not come."""
        return [
            ResponseGroup(prompt, tuple(_there(sample) for sample in samples))
            for prompt, samples in zip(self._prompts, self._found, strict=True)
        ]


def refuse_unless_neutral(settings: Mapping[str, tuple[object, object]]) -> None:
    """For settings of a framework that rollouts do not have: values, and what does nothing.

    RollcallError names the first one that would do something.
    """
    for name, (value, neutral) in settings.items():
        if value != neutral:
            raise RollcallError(
                f"generate: {name} is {value!r:.80}, which rollouts do not have; leave it out"
            )


def _there(sample: SampledResponse | None) -> SampledResponse:
    if sample is None:
        raise RollcallError("generate: the coordinator did not answer with all responses")
    return sample
