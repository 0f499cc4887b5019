"""How rollouts sample a response: `spec.algorithm.sampling`, and what a row changes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MAX_RESPONSE_TOKENS = 1 << 20
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 10.0  # vLLM takes 0.01 in place of less
MIN_TOP_P = 0.000001  # less than the likeliest token has, of up to a million
MAX_TOP_K = 1_000_000_000
MAX_STOPS = 16
MAX_STOP_LENGTH = 64
MAX_STOP_TOKENS = 64
MAX_TOKEN_ID = 2_147_483_647
MAX_COLUMN_LENGTH = 256


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """The distribution that tokens are sampled from, and where a response ends.

    It ends after `max_tokens` tokens (0: the inference engine's own default), after the token that
    completes one of the strings `stop`, or after one of `stop_token_ids` or of the model's own
    end-of-sequence tokens. Logits are divided by `temperature`; then only the likeliest tokens
    count, those with a total probability of `top_p` and at most `top_k` (0: all). `column`: that of
    a row's own settings, see `sampling_of`; empty: none.
    """

    max_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    column: str = ""

    def __post_init__(self) -> None:
        """ValueError says which setting is out of its range, by the name that a user gives it."""
        if not 0 <= self.max_tokens <= MAX_RESPONSE_TOKENS:
            raise ValueError(f"maxTokens must be from 1 to {MAX_RESPONSE_TOKENS}")
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ValueError(f"temperature must be from {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}")
        if not MIN_TOP_P <= self.top_p <= 1:
            raise ValueError(f"topP must be from {MIN_TOP_P:f} to 1")
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise ValueError(f"topK must be from 0 to {MAX_TOP_K}")
        if len(self.column) > MAX_COLUMN_LENGTH:
            raise ValueError(f"column must have at most {MAX_COLUMN_LENGTH} characters")
        self._check_ends()

    def _check_ends(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise ValueError(f"stop must have at most {MAX_STOPS} strings")
        if not all(1 <= len(text) <= MAX_STOP_LENGTH for text in self.stop):
            raise ValueError(f"each string of stop must have 1 to {MAX_STOP_LENGTH} characters")
        if any("\ud800" <= letter <= "\udfff" for text in self.stop for letter in text):
            raise ValueError("a string of stop has half of a surrogate pair, which is no text")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise ValueError(f"stopTokenIds must have at most {MAX_STOP_TOKENS} numbers")
        if not all(0 <= token <= MAX_TOKEN_ID for token in self.stop_token_ids):
            raise ValueError(f"each number of stopTokenIds must be from 0 to {MAX_TOKEN_ID}")


def sampling_of(config: SamplingConfig, row: Mapping[str, Any]) -> SamplingConfig:
    """The settings for the prompt of `row`: those of `config`, with the row's own in their place.

    The column that `config` names may hold an object with `maxTokens` and `stop`. A row without the
    column, or with null in it or in one of its keys (as tables have that lack a value), changes
    nothing. ValueError says what is wrong with the object.
    """
    own = row.get(config.column) if config.column else None
    if own is None:
        return config
    if not isinstance(own, Mapping):
        problem = f"holds {own!r:.60}; wants an object with maxTokens or stop, or null"
        raise ValueError(problem)  # noqa: TRY004 - of data, not of a caller
    changes: dict[str, Any] = {}
    for key, value in own.items():
        if key not in _OF_A_ROW:
            raise ValueError(f"{str(key)!r:.60} cannot be set for a row; maxTokens and stop can")
        if value is not None:
            name, read = _OF_A_ROW[key]
            changes[name] = read(value)
    return replace(config, **changes)


def _read_max_tokens(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"maxTokens must be from 1 to {MAX_RESPONSE_TOKENS}, not {value!r:.60}")
    return value


def _read_stop(value: Any) -> tuple[str, ...]:
    texts = isinstance(value, Sequence) and all(isinstance(text, str) for text in value)
    if not texts or isinstance(value, str):
        raise ValueError(f"stop must be a list of strings, not {value!r:.60}")
    return tuple(value)


_OF_A_ROW = {"maxTokens": ("max_tokens", _read_max_tokens), "stop": ("stop", _read_stop)}
