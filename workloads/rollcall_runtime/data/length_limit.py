"""How many tokens a row may have, and what happens to a longer one."""

import sys
from dataclasses import dataclass

from rollcall_protocol.data_config import DataConfig, TooLong
from rollcall_runtime.worker.errors import SpecError


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


def length_limit(data: DataConfig, *, room: int | None) -> LengthLimit:
    """The limit that `data` sets, or else the `room` (in tokens) of the model; None: no bound.

    SpecError if it is above the room.
    """
    if not data.max_tokens:
        bound = sys.maxsize if room is None else room
        return LengthLimit(bound, data.too_long, "what the model's context has room for")
    if room is not None and data.max_tokens > room:
        problem = (
            f"{data.max_tokens} are more than the {room} that the model's context has room for; "
            "lower it"
        )
        raise SpecError("spec.data.maxTokens", problem)
    return LengthLimit(data.max_tokens, data.too_long, "spec.data.maxTokens")
