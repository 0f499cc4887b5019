"""What the events of one of SGLang's streams say: tokens, log-probabilities, versions, the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rollcall_runtime.rollout.engines.server.client import InferenceServerError
from rollcall_runtime.rollout.inference_engine import NewTokens

if TYPE_CHECKING:
    from collections.abc import Mapping

_FINISHED = frozenset({"stop", "length"})
_LEAST_LOGPROB = -9999.0  # below it a number is none that a model gave


class TokenStream:
    """Of one request, of which at most `most` tokens are expected. `ended`: nothing follows."""

    def __init__(self, *, vocabulary: int, most: int) -> None:
        self._vocabulary, self._most = vocabulary, most
        self._versions: list[int] = []  # of all tokens so far
        self.ended = False

    def read(self, event: Mapping[str, Any], *, version: int) -> NewTokens:
        """The next piece; `version` is that of its tokens until SGLang says it at the end.

        ValueError if SGLang refused the request as such; InferenceServerError if it failed, or says
        what its contract excludes.
        """
        try:
            meta = event["meta_info"]
            ending = (meta["finish_reason"] or {}).get("type", "")
            self._check_ending(ending, meta["finish_reason"] or {})
            tokens, logprobs = self._new_tokens(event["output_ids"], meta)
            new = (version,) * len(tokens)
            self._versions += new
            corrected = self._certain_versions(meta) if self.ended else ()
        except (KeyError, TypeError, AttributeError, _UnlikeContractError) as error:
            problem = f"SGLang's stream is not as its contract says: {error!r}"
            raise InferenceServerError(problem) from error
        finished = ending in _FINISHED
        return NewTokens(tokens, logprobs, new, finished=finished, all_versions=corrected)

    def _check_ending(self, ending: str, reason: Mapping[str, Any]) -> None:
        self.ended = bool(ending)
        code = reason.get("status_code")
        if ending not in {"", "abort", *_FINISHED}:
            raise _UnlikeContractError(f"a response ended with {ending!r}")
        if ending == "abort" and code is not None:  # an abort that an update asked for has none
            problem = f"{reason.get('message')}"[:2000]
            raise ValueError(problem) if code == 400 else InferenceServerError(problem)

    def _new_tokens(
        self, ids: list[Any], meta: Mapping[str, Any]
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Those that came with no event before; an event may repeat tokens in front of them."""
        total = int(meta["completion_tokens"])
        first = len(ids) - (total - len(self._versions))
        if not 0 <= first <= len(ids) or total > self._most:
            known = f"{len(self._versions)} tokens came before, and at most {self._most} are wanted"
            raise _UnlikeContractError(f"{total} tokens, of which {len(ids)} are named; {known}")
        if first == len(ids):
            return (), ()
        entries = meta["output_token_logprobs"][first : len(ids)]
        tokens = tuple(ids[first:])
        if [entry[1] for entry in entries] != list(tokens):
            raise _UnlikeContractError("log-probabilities of other tokens than came")
        if not all(type(token) is int and 0 <= token < self._vocabulary for token in tokens):
            raise _UnlikeContractError(f"tokens outside the vocabulary of {self._vocabulary}")
        return tokens, tuple(_logprob(entry[0]) for entry in entries)

    def _certain_versions(self, meta: Mapping[str, Any]) -> tuple[int, ...]:
        """Those of all tokens as SGLang's scheduler recorded them, where they differ from ours."""
        spans = meta.get("weight_versions") or []
        if not spans and meta["finish_reason"]["type"] == "abort":
            return ()  # it had not begun
        found: list[int] = []
        for span in spans:
            if span["start"] != len(found) or not span["start"] <= span["end"] <= self._most:
                raise _UnlikeContractError(f"versions of the tokens {span} after {len(found)}")
            if span["end"] > span["start"]:
                found += [_number(span["version"])] * (span["end"] - span["start"])
        if len(found) != len(self._versions):
            problem = f"the versions of {len(found)} of {len(self._versions)} tokens"
            raise _UnlikeContractError(problem)
        return tuple(found) if found != self._versions else ()


class _UnlikeContractError(ValueError):
    """An event that SGLang's contract excludes."""


def _number(version: str) -> int:
    if not (isinstance(version, str) and version.isdecimal()):
        raise _UnlikeContractError(f"{version!r:.60} is no version that it was given")
    return int(version)


def _logprob(value: object) -> float:
    """Natural, at most 0."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value < _LEAST_LOGPROB:
        problem = "SGLang gave a token no log-probability: are the weights finite?"
        raise InferenceServerError(problem)
    return min(float(value), 0.0)
