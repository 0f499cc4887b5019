"""Decodes a batch of prompts with a model in this process: left-padded rows, one token a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollcall_protocol.wire.partial_responses import Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollcall_runtime.rollout.engines.cached_model import CachedModel


class BatchDecoder:
    """The responses of one generate call, `group_size` rows for each prompt, in their order.

    Rows of different lengths are padded on the left, so that new tokens form a column. Finished
    rows are computed until all are finished; what they sample is dropped. `model` is this decoder's
    alone.
    """

    def __init__(
        self,
        model: CachedModel,
        *,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        max_tokens: int,
        partials: Sequence[Sequence[Response]] | None,
    ) -> None:
        _check(model, prompts, group_size=group_size, max_tokens=max_tokens, partials=partials)
        self._model = model
        self._max_tokens = max_tokens
        self._group_size = group_size
        begun = [part for group in partials for part in group] if partials else None
        self._begun = begun or [Response()] * (len(prompts) * group_size)
        self._shared = not any(part.tokens for part in self._begun)
        contexts = [
            [*prompt, *self._begun[number * group_size + sample].tokens]
            for number, prompt in enumerate(prompts)
            for sample in range(group_size)
        ]
        device = model.device
        self._tokens, self._padding = _left_pad(contexts, device)
        left = [max_tokens - len(part.tokens) for part in self._begun]
        unfinished = [not part.finished for part in self._begun]
        self._limit = torch.tensor(left, device=device)
        self._alive = torch.tensor(unfinished, device=device) & (self._limit > 0)
        self._lengths = torch.zeros_like(self._limit)  # tokens sampled and kept
        self._eos = torch.tensor(sorted(model.eos), dtype=torch.long, device=device)
        self._sampled: list[tuple[Tensor, Tensor, int]] = []  # tokens, logprobs, version
        self._cached_version: int | None = None
        self.unfinished = bool(self._alive.any())

    @torch.inference_mode()
    def decode(self, generator: torch.Generator, *, version: int) -> None:
        """Sample one token for each row that is not finished."""
        logits = self._prefill() if version != self._cached_version else self._advance()
        self._cached_version = version
        logprobs = logits.float().log_softmax(-1)
        tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)
        self._sampled.append((tokens[:, 0], logprobs.gather(1, tokens)[:, 0], version))
        self._tokens = torch.cat([self._tokens, tokens], dim=1)
        self._lengths += self._alive
        self._alive &= ~torch.isin(tokens[:, 0], self._eos) & (self._lengths < self._limit)
        self.unfinished = bool(self._alive.any())

    def results(self) -> list[list[Response]]:
        """The responses so far, `group_size` for each prompt."""
        steps = len(self._sampled)
        tokens = torch.stack([step[0] for step in self._sampled], 1).tolist() if steps else []
        logprobs = torch.stack([step[1] for step in self._sampled], 1).tolist() if steps else []
        versions = tuple(step[2] for step in self._sampled)
        alive, lengths = self._alive.tolist(), self._lengths.tolist()
        rows = [
            Response(
                tokens=(*begun.tokens, *tokens[row][: lengths[row]]),
                logprobs=(*begun.logprobs, *logprobs[row][: lengths[row]]),
                versions=(*begun.versions, *versions[: lengths[row]]),
                finished=not alive[row],
            )
            if steps
            else begun
            for row, begun in enumerate(self._begun)
        ]
        size = self._group_size
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def _prefill(self) -> Tensor:
        """Process all tokens so far, once for all samples that still equal their prompt."""
        model, size = self._model, self._group_size
        model.restart()
        if not self._shared or self._sampled:
            return model.logits(self._tokens, first=0, padding=self._padding)
        logits = model.logits(self._tokens[::size], first=0, padding=self._padding[::size])
        model.repeat(size)
        return logits.repeat_interleave(size, 0)

    def _advance(self) -> Tensor:
        last = self._tokens.shape[1] - 1
        return self._model.logits(self._tokens[:, last:], first=last, padding=self._padding)


def _left_pad(contexts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max((len(context) for context in contexts), default=0)
    padding = [width - len(context) for context in contexts]
    rows = [[0] * pad + list(context) for pad, context in zip(padding, contexts, strict=True)]
    return torch.tensor(rows, device=device), torch.tensor(padding, device=device)


def _check(
    model: CachedModel,
    prompts: Sequence[Sequence[int]],
    *,
    group_size: int,
    max_tokens: int,
    partials: Sequence[Sequence[Response]] | None,
) -> None:
    if not prompts or group_size < 1:
        raise ValueError("at least one prompt and a group size of at least 1 are needed")
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {number} is empty")
        if not all(0 <= token < model.vocabulary for token in prompt):
            raise ValueError(
                f"prompt {number} has a token outside the vocabulary of {model.vocabulary}"
            )
        # The last sampled token is not processed.
        if model.positions is not None and len(prompt) + max_tokens - 1 > model.positions:
            raise ValueError(
                f"prompt {number} has {len(prompt)} tokens; with a response of {max_tokens} that "
                f"is more than the model's {model.positions} positions"
            )
    if partials is not None and [len(group) for group in partials] != [group_size] * len(prompts):
        raise ValueError("partials must hold group_size generations for each prompt")
