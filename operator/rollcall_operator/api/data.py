"""What a job trains on: sources of prompts, their order and lengths."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollcall_operator.api.rolloutpool import EngineConfig
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import DataName
from rollcall_protocol.data_config import MAX_TEMPLATE, MAX_WEIGHT, REASONING_GYM


class RowsSpec(Model):
    """The rows of one file or data set."""

    # Without CEL: it cannot see objects of unknown fields, as `config` is.
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message=f"must be empty but for {REASONING_GYM}<data set>, whose settings it holds",
            holds=lambda rows: not rows.config or rows.name.startswith(REASONING_GYM),
            path=".config",
        ),
        Rule(
            message="must be empty unless chat is true",
            cel="self.system == '' || self.chat",
            holds=lambda rows: not rows.system or rows.chat,
            path=".system",
        ),
    )

    name: DataName
    """A builtin (builtin:reverse, builtin:first-letter, builtin:reasoning-gym/<data set>), the
    path of a file (.jsonl, .ndjson, .json, .csv, each also with .gz, or .parquet), a directory of
    such files or one that the package datasets saved, or a Hugging Face data set id."""
    config: EngineConfig
    """Settings of a data set of reasoning-gym, such as min_terms of chain_sum, and its seed and
    size (100000): so many questions are there."""
    subset: Annotated[str, Field(max_length=256)] = ""
    """Subset of a data set."""
    split: Annotated[str, Field(min_length=1, max_length=256)] = "train"
    """Split of a data set."""
    column: Annotated[str, Field(max_length=256)] = ""
    """Column that holds the prompt. Empty: messages, prompt or tokens, whichever there is."""
    template: Annotated[str, Field(max_length=MAX_TEMPLATE)] = ""
    """Text of the prompt, in which {name} stands for the row's column of that name, and {{ and }}
    for braces. It is put into column, or else into prompt. Empty: the rows hold the prompt."""
    chat: bool = False
    """true: a prompt that is a text, or is made by template, is given to the model as the turn of a
    user in a chat, by the tokenizer's chat template."""
    system: Annotated[str, Field(max_length=MAX_TEMPLATE)] = ""
    """What a system's turn before it says, with chat. Empty: there is none."""
    columns: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]],
        Field(
            default_factory=list,
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    """Other columns that the reward function gets. Empty: all."""


class DataSourceSpec(RowsSpec):
    """One of several sources of prompts."""

    weight: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] = 1
    """Share of the prompts: this weight, out of the sum of all sources' weights."""


class DataSpec(Model):
    """The prompts to train on: exactly one of prompts and sources."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must have exactly one of prompts and sources",
            cel="has(self.prompts) != has(self.sources)",
            holds=lambda data: (data.prompts is None) != (data.sources is None),
        ),
    )

    prompts: DataName | None = None
    """The only source: a builtin (builtin:reverse, builtin:first-letter,
    builtin:reasoning-gym/<data set>, or builtin:front for agents' trajectories), the path of a
    file (.jsonl, .ndjson, .json, .csv, each also with .gz, or .parquet), a directory of such files
    or one that the package datasets saved, or a Hugging Face data set id."""
    sources: (
        Annotated[
            list[DataSourceSpec],
            Field(
                min_length=1,
                max_length=64,
                json_schema_extra={"x-kubernetes-list-type": "atomic"},
            ),
        ]
        | None
    ) = None
    """Several sources, which are mixed by their weights."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed for the order of the prompts and the builtin tasks."""
    max_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens of the longest prompt. 0: as many as fit into the model's context."""
    too_long: Literal["Fail", "Drop", "TruncateLeft", "TruncateRight"] = "Fail"
    """What happens to a longer prompt. Fail: the job ends with an error that names the row. Drop:
    it is left out. TruncateLeft: its last tokens are kept. TruncateRight: its first tokens are
    kept."""
