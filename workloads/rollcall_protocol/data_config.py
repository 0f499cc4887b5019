"""What a job trains on: `spec.data`, as the workers read it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TooLong(StrEnum):
    """What happens to a row with more tokens than it may have."""

    FAIL = "Fail"  # the job ends with an error that names the row
    DROP = "Drop"  # the row is left out
    TRUNCATE_LEFT = "TruncateLeft"  # its last tokens are kept
    TRUNCATE_RIGHT = "TruncateRight"  # its first tokens are kept


@dataclass(frozen=True, slots=True)
class DataSource:
    """One source of rows.

    `name`: a builtin (builtin:reverse, or REASONING_GYM and a data set), the path of a file, a
    directory of files or one that `datasets` saved or can load, or the id of a data set; `subset`
    and `split` choose within the last two. `weight`: how many of `sum of weights` successive
    prompts come from this source. `column` holds the prompt; empty: `messages`,
    `prompt` or `tokens`, whichever there is. `columns` go to the reward function beside it; empty:
    all. `template` makes the prompt of other columns, whose names stand between braces, and puts it
    into `column`, or else `prompt`. With `chat` a prompt that is a text is the turn of a user,
    after `system` if that is given. `config`: settings of a data set of reasoning-gym.
    """

    name: str
    weight: int = 1
    subset: str = ""
    split: str = "train"
    column: str = ""
    columns: tuple[str, ...] = ()
    template: str = ""
    chat: bool = False
    system: str = ""
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if not self.name:
            raise ValueError("a source needs a name")
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"a weight must be from 1 to {MAX_WEIGHT}, not {self.weight}")
        if max(len(self.template), len(self.system)) > MAX_TEMPLATE:
            raise ValueError(f"template and system must have at most {MAX_TEMPLATE} characters")
        if self.system and not self.chat:
            raise ValueError("system needs chat: true")

    @property
    def prompt_column(self) -> str:
        """The column that holds the prompt; empty: whichever there is."""
        return self.column or ("prompt" if self.template else "")


FRONT = "builtin:front"  # no prompts: agents' trajectories, which the front records
REASONING_GYM = "builtin:reasoning-gym/"
MAX_WEIGHT = 10_000
MAX_TEMPLATE = 16_384


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Sources, their order, and how many tokens a row may have.

    There are none if the trainer is a program of the user's own. `seed` chooses the order.
    `max_tokens` bounds a prompt, or in supervised training all that is read and learnt of a row; 0
    for what fits into the model's context.
    """

    sources: tuple[DataSource, ...]
    seed: int = 0
    max_tokens: int = 0
    too_long: TooLong = TooLong.FAIL

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if self.max_tokens < 0:
            raise ValueError("maxTokens must be at least 0")
        if len(self.sources) > 1 and any(source.name == FRONT for source in self.sources):
            raise ValueError(f"{FRONT} must be the only source")

    @property
    def from_front(self) -> bool:
        """Whether the job trains on agents' trajectories, and has no prompts."""
        return any(source.name == FRONT for source in self.sources)
