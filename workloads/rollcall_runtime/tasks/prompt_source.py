"""Prompts by number: prompt i of a source and seed never changes.

So a checkpoint needs nothing but the number of the next prompt (the cursor), and a prompt that is
handed out twice is the same prompt.
"""

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from rollcall_runtime.tasks import reverse
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.data.prompts"


class PromptSource(Protocol):
    """An endless, numbered sequence of prompts."""

    def prompt(self, index: int) -> tuple[int, ...]:
        """The tokens of prompt `index` (from 0), always the same."""


@dataclass(frozen=True, slots=True)
class ReversePrompts:
    """`builtin:reverse`."""

    seed: int

    def prompt(self, index: int) -> tuple[int, ...]:
        return reverse.prompt(index, seed=self.seed)


@dataclass(frozen=True, slots=True)
class FilePrompts:
    """The prompts of a file over and over, shuffled again for each pass."""

    prompts: tuple[tuple[int, ...], ...]
    seed: int

    def prompt(self, index: int) -> tuple[int, ...]:
        turn, place = divmod(index, len(self.prompts))
        return self.prompts[_order(self.seed, turn, len(self.prompts))[place]]


@lru_cache(maxsize=2)  # a pass at a time is read; two where a lease spans the turn
def _order(seed: int, turn: int, count: int) -> list[int]:
    order = list(range(count))
    # A reproducible order, not a secret.
    random.Random(f"{seed}/{turn}").shuffle(order)  # noqa: S311
    return order


def open_prompts(prompts: str, *, seed: int) -> PromptSource:
    """The source that `prompts` names: "builtin:reverse", or a JSON Lines file.

    Each line of a file is an object with `tokens`, a list of token numbers; other members are
    ignored, empty lines skipped. SpecError says which line is wrong.
    """
    if prompts == "builtin:reverse":
        return ReversePrompts(seed)
    if prompts.startswith("builtin:"):
        raise SpecError(FIELD, f"unknown {prompts!r}; built in: builtin:reverse")
    path = Path(prompts)
    if path.suffix != ".jsonl":
        problem = "is neither built in (builtin:reverse) nor a .jsonl file"
        raise SpecError(FIELD, f"{prompts!r} {problem}")
    try:
        with path.open(encoding="utf-8") as lines:
            found = tuple(
                _tokens(line, place=f"{path}:{number}")
                for number, line in enumerate(lines, start=1)
                if line.strip()
            )
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(FIELD, f"cannot read {prompts!r}: {error}; is it mounted?") from error
    if not found:
        raise SpecError(FIELD, f"{prompts!r} holds no prompt")
    return FilePrompts(found, seed)


def _tokens(line: str, *, place: str) -> tuple[int, ...]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SpecError(FIELD, f"{place}: not JSON: {error}") from error
    tokens = value.get("tokens") if isinstance(value, dict) else None
    if not (isinstance(tokens, list) and tokens and all(_is_token(item) for item in tokens)):
        raise SpecError(FIELD, f'{place}: wants {{"tokens": [...]}} with numbers from 0 on')
    return tuple(tokens)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
