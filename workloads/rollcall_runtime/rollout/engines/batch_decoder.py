"""Decodes responses with a model in this process, row by row of a batch, one token a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.rollout.engines.token_choice import (
    choose,
    completes_a_stop,
    likeliest,
    token_logprobs,
    uniform_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rollcall_protocol.sampling_config import SamplingConfig
    from rollcall_runtime.rollout.engines.cached_model import CachedModel


@dataclass(slots=True, eq=False)
class ResponseRow:
    """A response to `prompt`: its tokens so far, those that it was begun with included.

    `top`: the `most_top` likeliest in the place of each token, none of one that it was begun with;
    it stays empty where `most_top` is 0.
    It ends as `sampling` says, or when it is `cancelled`, which another thread may do.
    """

    prompt: tuple[int, ...]
    sampling: SamplingConfig
    seed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    most_top: int = 0
    finished: bool = False
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        """Whether no more tokens are wanted."""
        return self.finished or self.cancelled


class BatchDecoder:
    """The `rows` of one batch, none of which has ended. `model` is this decoder's alone.

    Rows of different lengths are padded on the left, so that new tokens form a column. Rows that
    have ended are computed until they are half of all; what they sample is dropped. `text` decodes
    tokens, for stop strings; those of `eos` end a response.
    """

    def __init__(
        self,
        model: CachedModel,
        rows: Sequence[ResponseRow],
        *,
        text: Callable[[Sequence[int]], str],
        eos: frozenset[int],
    ) -> None:
        self._model, self._text, self._eos = model, text, eos
        self._rows: list[ResponseRow] = []
        self._seeds: list[int] = []
        self._tokens = self._padding = torch.empty(0, device=model.device)
        self._unique: list[int] = []  # a row of each context, and which of them each row has
        self._number_of: list[int] = []
        self._cached_version: int | None = None
        self._set_rows(list(rows))

    @property
    def rows(self) -> list[ResponseRow]:
        """Those that have not ended."""
        return [row for row in self._rows if not row.ended]

    @torch.inference_mode()
    def decode(self, *, version: int) -> None:
        """Sample one token for each row that has not ended, with the weights of `version`."""
        self._drop_ended()
        if not self._rows:
            return
        logits = self._prefill() if version != self._cached_version else self._advance()
        self._cached_version = version
        logprobs = self._logprobs(logits)
        numbers = uniform_numbers(self._seeds, [len(row.tokens) for row in self._rows])
        tokens = choose(logprobs, torch.from_numpy(numbers).to(logprobs.device))
        self._tokens = torch.cat([self._tokens, tokens], dim=1)
        chosen = logprobs.gather(1, tokens)[:, 0].tolist()
        sampled = zip(self._rows, tokens[:, 0].tolist(), chosen, strict=True)
        for at, (row, token, logprob) in enumerate(sampled):
            if not row.ended:
                row.tokens.append(token)
                row.logprobs.append(logprob)
                row.versions.append(version)
                if row.most_top:
                    row.top.append(likeliest(logprobs[at], row.most_top))
                row.finished = self._ends(row, token)

    def _set_rows(self, rows: list[ResponseRow]) -> None:
        """Begin anew with `rows`: nothing is cached."""
        self._rows = rows
        self._seeds = [row.seed for row in rows]
        contexts = [(*row.prompt, *row.tokens) for row in rows]
        self._tokens, self._padding = _left_pad(contexts, self._model.device)
        first = {context: at for at, context in reversed(list(enumerate(contexts)))}
        self._unique = sorted(first.values())
        numbers = {at: number for number, at in enumerate(self._unique)}
        self._number_of = [numbers[first[context]] for context in contexts]
        self._cached_version = None

    def _drop_ended(self) -> None:
        left = [at for at, row in enumerate(self._rows) if not row.ended]
        if 2 * len(left) > len(self._rows):
            return
        rows = torch.tensor(left, dtype=torch.long, device=self._model.device)
        self._rows = [self._rows[at] for at in left]
        self._seeds = [row.seed for row in self._rows]
        self._tokens, self._padding = self._tokens[rows], self._padding[rows]
        if self._cached_version is not None:
            self._model.select(rows)

    def _ends(self, row: ResponseRow, token: int) -> bool:
        sampling = row.sampling
        if token in self._eos or token in sampling.stop_token_ids:
            return True
        if len(row.tokens) >= sampling.max_tokens:
            return True
        return bool(sampling.stop) and completes_a_stop(row.tokens, sampling.stop, self._text)

    def _logprobs(self, logits: Tensor) -> Tensor:
        """Each row by its own temperature, top-p and top-k."""
        kinds: dict[tuple[float, float, int], list[int]] = {}
        for at, row in enumerate(self._rows):
            own = row.sampling
            kinds.setdefault((own.temperature, own.top_p, own.top_k), []).append(at)
        if len(kinds) == 1:
            return token_logprobs(logits, self._rows[0].sampling)
        found = torch.empty_like(logits, dtype=torch.float32)
        for rows in kinds.values():
            found[rows] = token_logprobs(logits[rows], self._rows[rows[0]].sampling)
        return found

    def _prefill(self) -> Tensor:
        """Process all tokens so far, once for all rows that have the same."""
        self._set_rows(self.rows or self._rows)  # a row may be cancelled at any moment
        self._model.restart()
        if len(self._unique) == len(self._rows):
            return self._model.logits(self._tokens, first=0, padding=self._padding)
        tokens, padding = self._tokens[self._unique], self._padding[self._unique]
        logits = self._model.logits(tokens, first=0, padding=padding)
        rows = torch.tensor(self._number_of, device=self._model.device)
        self._model.select(rows)
        return logits[rows]

    def _advance(self) -> Tensor:
        last = self._tokens.shape[1] - 1
        return self._model.logits(self._tokens[:, last:], first=last, padding=self._padding)


def _left_pad(contexts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max((len(context) for context in contexts), default=0)
    padding = [width - len(context) for context in contexts]
    rows = [[0] * pad + list(context) for pad, context in zip(padding, contexts, strict=True)]
    return torch.tensor(rows, device=device), torch.tensor(padding, device=device)
