"""Decodes a batch of prompts with the built-in model: left-padded rows, one token a step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.models.tiny_decoder import KeyValueCache, TinyDecoder


class BatchDecoder:
    """The responses of one generate call, `group_size` rows for each prompt, in their order.

    Rows of different lengths are padded on the left, so that new tokens form a column. Finished
    rows are computed until all are finished; what they sample is dropped.
    """

    def __init__(
        self,
        model: TinyDecoder,
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
        self._tokens, self._padding = _left_pad(contexts)
        self._limit = torch.tensor([max_tokens - len(part.tokens) for part in self._begun])
        self._alive = torch.tensor([not part.finished for part in self._begun]) & (self._limit > 0)
        self._lengths = torch.zeros(len(contexts), dtype=torch.long)  # tokens sampled and kept
        self._sampled: list[tuple[Tensor, Tensor, int]] = []  # tokens, logprobs, version
        self._cache = KeyValueCache()
        self._cache_version: int | None = None
        self.unfinished = bool(self._alive.any())

    @torch.inference_mode()
    def decode(self, generator: torch.Generator, *, version: int) -> None:
        """Sample one token for each row that is not finished."""
        logits = self._prefill() if version != self._cache_version else self._advance()
        self._cache_version = version
        logprobs = logits.log_softmax(-1)
        tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)
        self._sampled.append((tokens[:, 0], logprobs.gather(1, tokens)[:, 0], version))
        self._tokens = torch.cat([self._tokens, tokens], dim=1)
        self._lengths += self._alive
        self._alive &= (tokens[:, 0] != self._model.config.eos) & (self._lengths < self._limit)
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
        self._cache = KeyValueCache()
        if self._shared and not self._sampled:
            size = self._group_size
            logits = self._forward(self._tokens[::size], self._padding[::size], first=0)
            self._cache.repeat(size)
            return logits.repeat_interleave(size, 0)
        return self._forward(self._tokens, self._padding, first=0)

    def _advance(self) -> Tensor:
        return self._forward(self._tokens[:, -1:], self._padding, first=self._tokens.shape[1] - 1)

    def _forward(self, tokens: Tensor, padding: Tensor, *, first: int) -> Tensor:
        """Logits after the last of `tokens`, which are in the columns from `first` on."""
        columns = torch.arange(first, first + tokens.shape[1])
        positions, mask = columns, None
        if bool(padding.any()):
            positions = (columns - padding[:, None]).clamp(min=0)
            mask = _visible(columns, padding)
        # Positions run over in finished rows only.
        positions = positions.clamp(max=self._model.config.positions - 1)
        logits = self._model(tokens, cache=self._cache, positions=positions, mask=mask)
        last: Tensor = logits[:, -1]
        return last


def _visible(columns: Tensor, padding: Tensor) -> Tensor:
    """The keys that each of `columns` attends to, bool [rows, 1, columns, keys]."""
    keys = torch.arange(int(columns[-1]) + 1)
    seen = (keys <= columns[:, None]) & (keys >= padding[:, None, None])
    # Padding attends to itself: no row of a softmax may be empty.
    return (seen | (keys == columns[:, None]))[:, None]


def _left_pad(contexts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max((len(context) for context in contexts), default=0)
    padding = [width - len(context) for context in contexts]
    rows = [[0] * pad + list(context) for pad, context in zip(padding, contexts, strict=True)]
    return torch.tensor(rows, dtype=torch.long), torch.tensor(padding, dtype=torch.long)


def _check(
    model: TinyDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    group_size: int,
    max_tokens: int,
    partials: Sequence[Sequence[Response]] | None,
) -> None:
    config = model.config
    if not prompts or group_size < 1:
        raise ValueError("at least one prompt and a group size of at least 1 are needed")
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {number} is empty")
        if not all(0 <= token < config.vocabulary for token in prompt):
            raise ValueError(
                f"prompt {number} has a token outside the vocabulary of {config.vocabulary}"
            )
        # The last sampled token is not processed.
        if len(prompt) + max_tokens - 1 > config.positions:
            raise ValueError(
                f"prompt {number} has {len(prompt)} tokens; with a response of {max_tokens} that "
                f"is more than the model's {config.positions} positions"
            )
    if partials is not None and [len(group) for group in partials] != [group_size] * len(prompts):
        raise ValueError("partials must hold group_size generations for each prompt")
