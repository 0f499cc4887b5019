"""How many tokens a row may have, and what happens to a longer one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollcall_protocol.data_config import DataConfig, TooLong
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.data.model_input import ModelInput


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """At most `tokens`; `reason` says where the number comes from."""

    tokens: int
    policy: TooLong
    reason: str

    def kept(self, count: int, *, place: str, field: str) -> slice | None:
        """Which of the `count` tokens of the row at `place` are kept; None: the row is dropped.

        SpecError at `field` if the policy is to fail.
        """
        if count <= self.tokens:
            return slice(0, count)
        match self.policy:
            case TooLong.TRUNCATE_LEFT:
                return slice(count - self.tokens, count)
            case TooLong.TRUNCATE_RIGHT:
                return slice(0, self.tokens)
            case TooLong.DROP:
                return None
            case TooLong.FAIL:
                problem = f"{place}: {count} tokens are more than {self.tokens} ({self.reason})"
                advice = (
                    "shorten it, or set spec.data.tooLong to Drop, TruncateLeft or TruncateRight"
                )
                raise SpecError(field, f"{problem}; {advice}")


def length_limit(data: DataConfig, model: ModelInput, *, response: int = 0) -> LengthLimit:
    """The limit that `data` sets, or else the model's context, less the tokens of a `response`.

    SpecError if it is above that.
    """
    room = None if model.context is None else model.context - response
    has_room = f"{model.bounded_by} has room for"
    if not data.max_tokens:
        bound = sys.maxsize if room is None else room
        return LengthLimit(bound, data.too_long, f"what {has_room}")
    if room is not None and data.max_tokens > room:
        problem = f"{data.max_tokens} are more than the {room} that {has_room}; lower it"
        raise SpecError("spec.data.maxTokens", problem)
    return LengthLimit(data.max_tokens, data.too_long, "spec.data.maxTokens")
