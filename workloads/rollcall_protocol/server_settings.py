"""What the settings of all inference servers have in common."""

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from rollcall_protocol.setting_ranges import AT_LEAST_0, AT_LEAST_1, check_ranges


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the agent starts a server. Seconds bound the start, and how long it may not answer.

    `max_tokens`: of a response, unless the job says otherwise. `max_model_len`: tokens of a prompt
    and its response; 0: as many as the model has positions. `dtype` of the weights that are served.
    `arguments`: more of the server's own, as on a command line.
    """

    max_tokens: Annotated[int, AT_LEAST_1] = 256
    max_model_len: Annotated[int, AT_LEAST_0] = 0
    dtype: str = "auto"
    tensor_parallel_size: Annotated[int, AT_LEAST_1] = 1
    start_seconds: float = 600.0
    silent_seconds: float = 60.0
    arguments: str = ""

    def __post_init__(self) -> None:
        """ValueError says which setting is wrong, by the name that a user gives it."""
        check_ranges(self)
        if not (0 < self.start_seconds <= 86_400 and 1 <= self.silent_seconds <= 3_600):
            raise ValueError("startSeconds must be at most 86400, silentSeconds from 1 to 3600")
        self.command_line()

    def command_line(self) -> list[str]:
        """`arguments`, one by one; ValueError for an unclosed quotation, or one that is refused."""
        raise NotImplementedError


def split_arguments(
    arguments: str, *, server: str, taken: Collection[str], unfit: Collection[str]
) -> list[str]:
    """A user's arguments, one by one.

    ValueError for an unclosed quotation, or a name in `taken` or `unfit`, also where it is written
    in another way that argparse and the server's own parser take: `--a_b`, `--a.part`, or a
    beginning of it.
    """
    found = shlex.split(arguments)
    for argument in found:
        name = argument.partition("=")[0]
        if _means(name, taken):
            raise ValueError(f"arguments must not have {name}, which Rollcall sets")
        if _means(name, unfit):
            raise ValueError(
                f"arguments must not have {name}: updates would not reach all of {server}"
            )
    return found


def _means(name: str, refused: Collection[str]) -> bool:
    if not name.startswith("--"):
        return name in refused
    plain = name.partition(".")[0].replace("_", "-")
    return len(plain) > len("--") and any(other.startswith(plain) for other in refused)
