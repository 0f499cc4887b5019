"""The scalar types of the API, each with its rule and its message."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field

from rollcall_operator.api.quantity import (
    DECIMAL_PATTERN,
    is_quantity,
    parse_decimal,
    parse_quantity,
)
from rollcall_operator.api.rules import Rule
from rollcall_protocol.sampling_config import MAX_TEMPERATURE, MIN_TEMPERATURE, MIN_TOP_P
from rollcall_protocol.train_settings import BUILT_IN, MAX_LEARNING_RATE

JOB_NAME_MAX = 43
"""The trainer's StatefulSet is named <job>-trainer, and must stay under 52 characters: its pods
carry a label of this name and a hash."""
ROLLOUT_NAME_MAX = 19
"""<job>-<rollout> is a label value: at most 63 characters."""
POOL_NAME_MAX = 63
GROUP_NAME_MAX = 40

_LABEL = "[a-z]([-a-z0-9]*[a-z0-9])?"

TRAIN_ENGINES = tuple(BUILT_IN)
ROLLOUT_ENGINES = ("tiny", "transformers", "sglang", "vllm")
SYNC_ENGINES = ("auto", "gloo", "nccl", "hccl", "mooncake", "kimi", "nixl", "ray", "store")
_QUALIFIED = "^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)+$"


def matches(pattern: str, message: str) -> Rule:
    """A rule that a string matches the pattern, which is anchored and has no quotes."""
    compiled = re.compile(pattern)
    return Rule(
        message=message,
        cel=f"self.matches('{pattern}')",
        holds=lambda value: compiled.fullmatch(value) is not None,
    )


def dns_label(longest: int, why: str) -> Rule:
    """A rule that a string is a lower-case DNS label of at most `longest` characters."""
    return Rule(
        message="must be lower-case letters, digits and '-', begin with a letter, not end with '-',"
        f" and be at most {longest} characters ({why})",
        cel=f"self.size() <= {longest} && self.matches('^{_LABEL}$')",
        holds=lambda value: len(value) <= longest and re.fullmatch(_LABEL, value) is not None,
    )


def named(longest: int, why: str) -> Rule:
    """A rule for the root of a resource: its `metadata.name` is a DNS label. In Python it is
    checked against the name itself.
    """
    label = dns_label(longest, why)
    return Rule(
        message=f"metadata.name {label.message}",
        cel=label.cel.replace("self.", "self.metadata.name."),
        holds=label.holds,
    )


def _engine(kind: str, builtin: tuple[str, ...]) -> Any:
    names = ", ".join(builtin)
    cel_names = ", ".join(f"'{name}'" for name in builtin)
    rule = Rule(
        message=f"unknown {kind} engine; builtin: {names}. An engine that your image registers by "
        "entry point has a qualified name, such as example.my-engine",
        cel=f"self in [{cel_names}] || self.matches('{_QUALIFIED}')",
        holds=lambda value: value in builtin or re.fullmatch(_QUALIFIED, value) is not None,
    )
    return Annotated[str, Field(min_length=1, max_length=63), rule]


def _decimal(low: str, high: str, example: str, *, with_low: bool = False) -> Any:
    """A decimal string above `low`, or `low` itself if that is allowed, and at most `high`."""
    bounds = f"from {low} to {high}" if with_low else f"above {low} and at most {high}"

    def inside(value: str) -> bool:
        try:
            number = parse_decimal(value)
        except ValueError:
            return False
        above = number >= Decimal(low) if with_low else number > Decimal(low)
        return above and number <= Decimal(high)

    number, above = "double(self)", ">=" if with_low else ">"
    rule = Rule(
        message=f'must be a decimal string {bounds}, such as "{example}"',
        cel=f"self.matches('{DECIMAL_PATTERN}') && {number} {above} {low} && {number} <= {high}",
        holds=inside,
    )
    return Annotated[str, Field(min_length=1, max_length=24), rule]


def _bytes_between(low: str, high: str) -> Callable[[str], bool]:
    def inside(value: str) -> bool:
        if not is_quantity(value):
            return False
        amount = parse_quantity(value)
        return amount == amount.to_integral_value() and parse_quantity(
            low
        ) <= amount <= parse_quantity(high)

    return inside


TrainEngineName = _engine("training", TRAIN_ENGINES)
RolloutEngineName = _engine("inference", ROLLOUT_ENGINES)
SyncEngineName = _engine("weight sync", SYNC_ENGINES)

Ratio = _decimal("0.0", "1.0", "0.2")
Share = _decimal("0.0", "1.0", "0.2", with_low=True)
Amount = _decimal("0.0", "1000.0", "0.5", with_low=True)
Cap = _decimal("1.0", "1000.0", "5", with_low=True)
Temperature = _decimal(str(MIN_TEMPERATURE), str(MAX_TEMPERATURE), "0.7", with_low=True)
TopP = _decimal(f"{MIN_TOP_P:f}", "1.0", "0.95", with_low=True)
LearningRate = _decimal("0.0", str(MAX_LEARNING_RATE), "1e-3")

_NAME = "[A-Za-z0-9][-A-Za-z0-9._]*"

ModelPath = Annotated[
    str,
    Field(min_length=1, max_length=512),
    matches(
        f"^(builtin:{_NAME}|/.+|{_NAME}(/{_NAME})?(@[-A-Za-z0-9._/]+)?)$",
        "must be builtin:<name>, an absolute path such as /models/mine, or a Hugging Face id such "
        "as org/model or org/model@revision",
    ),
]
DataName = Annotated[
    str,
    Field(min_length=1, max_length=512),
    matches(
        f"^(builtin:{_NAME}(/{_NAME})?|(/[^/]+)*/([^/]+[.](parquet|(jsonl|ndjson|json|csv)([.]gz)?)|[^/.]+)|{_NAME}(/{_NAME})?)$",
        "must be builtin:<name>, an absolute path of a directory or of a file that ends in .jsonl, "
        ".ndjson, .json or .csv (or one of them with .gz) or in .parquet, or a data set id such as "
        "org/prompts",
    ),
]

BucketSize = Annotated[
    str,
    Field(min_length=1, max_length=24),
    Rule(
        message="must be a quantity of whole bytes from 4Ki to 4Gi, such as 64Mi",
        cel="isQuantity(self) && quantity(self).isInteger() && "
        "quantity(self).compareTo(quantity('4Ki')) >= 0 && "
        "quantity(self).compareTo(quantity('4Gi')) <= 0",
        holds=_bytes_between("4Ki", "4Gi"),
    ),
]

JobName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    dns_label(JOB_NAME_MAX, "its trainer pods are named after it"),
]
RolloutName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    dns_label(ROLLOUT_NAME_MAX, "its RolloutPool is named <job>-<name>"),
]

GroupName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    dns_label(GROUP_NAME_MAX, "it is part of the names of sessions and metrics"),
]

Folder = Annotated[
    str,
    Field(min_length=1, max_length=256),
    matches("^(/[-A-Za-z0-9._]+)+$", "must be an absolute path, such as /var/tmp/profile"),
]

Milliseconds = Annotated[int, Field(ge=50, le=86_400_000)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]
LongSeconds = Annotated[int, Field(ge=1, le=31_536_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Replicas = Annotated[int, Field(ge=0, le=10_000)]
Device = Literal["auto", "cpu"]
