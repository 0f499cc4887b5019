"""A setting says beside itself what it may be; an error has the name that a manifest has."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from rollcall_protocol.setting_ranges import AT_LEAST_1, OneOf, Range, check_ranges
from rollcall_protocol.train_settings import EngineSettings


@dataclass(frozen=True)
class Settings:
    share: Annotated[float, Range(0, 1)] = 0.5
    row_count: Annotated[int, AT_LEAST_1] = 1
    kind: Annotated[str, OneOf("a", "b")] = "a"
    free: float = 0.0


@pytest.mark.parametrize(
    "values",
    [{"share": 0.0}, {"share": 1.0}, {"row_count": 10**9}, {"kind": "b"}, {"free": float("nan")}],
)
def test_ends_of_a_range_and_what_has_none_are_allowed(values: dict[str, Any]) -> None:
    check_ranges(Settings(**values))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"share": 1.1}, "share must be between 0 and 1"),
        ({"share": -0.1}, "share must be between 0 and 1"),
        ({"share": float("nan")}, "share must be between 0 and 1"),
        ({"row_count": 0}, "rowCount must be at least 1"),
        ({"kind": "c"}, "kind must be one of a, b"),
    ],
)
def test_what_is_outside_is_named(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        check_ranges(Settings(**values))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"replicas": 0}, "replicas must be at least 1"),
        ({"context_parallel": 0}, "contextParallel must be at least 1"),
        ({"warmup_steps": -1}, "warmupSteps must be at least 0"),
        ({"weight_decay": float("nan")}, "weightDecay must be at least 0"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"beta2": 1.0}, "beta2 must be at least 0 and below 1"),
        ({"precision": "fp16"}, "precision must be one of fp32, bf16"),
        ({"min_learning_rate": 1.5}, "minLearningRate is a share of the learning rate: at most 1"),
    ],
)
def test_engine_settings_outside_of_their_ranges_are_named(
    values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        EngineSettings(**values)
