"""A worker's settings are those of the spec by the same names, and both have the same defaults."""

from dataclasses import dataclass
from typing import Any

import pytest

from rollcall_operator.api.algorithm import SamplingSpec
from rollcall_operator.api.monitoring import HealthSpec, TrackingSpec
from rollcall_operator.api.rljob import DeltaSpec, MembershipSpec
from rollcall_operator.api.roles import CriticSpec
from rollcall_operator.api.rules import Model
from rollcall_operator.api.supervised import SupervisedSpec
from rollcall_operator.plan.children.from_spec import from_spec
from rollcall_protocol.job_config import (
    CriticConfig,
    DeltaConfig,
    HealthConfig,
    MembershipConfig,
    TrackingConfig,
)
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.supervised_config import SupervisedConfig


@pytest.mark.parametrize(
    ("cls", "spec", "given"),
    [
        (HealthConfig, HealthSpec(), {}),
        (TrackingConfig, TrackingSpec(), {}),
        (DeltaConfig, DeltaSpec(), {}),
        (SamplingConfig, SamplingSpec.model_validate({}), {}),
        (CriticConfig, CriticSpec(learning_rate="1e-3"), {"model": ""}),
        (SupervisedConfig, SupervisedSpec(), {"evaluation": None, "evaluate_every": 0}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_spec_leaves_out_is_the_workers_default(
    cls: type[Any], spec: Model, given: dict[str, Any]
) -> None:
    assert from_spec(cls, spec, **given) == cls()


def test_times_are_seconds() -> None:
    spec = MembershipSpec(settle_seconds=2, heartbeat_milliseconds=250)
    read = from_spec(MembershipConfig, spec)
    assert (read.settle, read.heartbeat) == (2.0, 0.25)
    assert isinstance(read.settle, float)


def test_sizes_are_bytes_and_decimal_strings_are_numbers() -> None:
    read = from_spec(DeltaConfig, DeltaSpec(block_size="64Ki", max_share="0.3"))
    assert read == DeltaConfig(max_share=0.3, block_bytes=65_536)


def test_lists_are_tuples_as_a_worker_reads_them_back() -> None:
    read = from_spec(SamplingConfig, SamplingSpec(stop=["END"], stop_token_ids=[3]))
    assert read == SamplingConfig(stop=("END",), stop_token_ids=(3,))


def test_a_value_that_is_given_goes_before_the_specs() -> None:
    assert from_spec(HealthConfig, HealthSpec(), max_skipped_steps=9).max_skipped_steps == 9


def test_a_field_that_the_spec_lacks_must_be_given() -> None:
    @dataclass(frozen=True)
    class More:
        max_skipped_steps: int
        longest_silence: float

    with pytest.raises(TypeError, match="HealthSpec has no field for longest_silence; give its"):
        from_spec(More, HealthSpec())
    assert from_spec(More, HealthSpec(), longest_silence=1.0) == More(5, 1.0)
