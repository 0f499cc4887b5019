"""The settings of rewards that fail are within their bounds."""

from typing import Any

import pytest

from rollcall_protocol.job_config import RewardErrorConfig


def test_by_default_a_tenth_may_be_rejected() -> None:
    assert RewardErrorConfig() == RewardErrorConfig("Reject", 0.1, 30.0)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"on_error": "reject"}, "onError must be Reject, Zero or Fail"),
        ({"max_share": 0.0}, "maxErrorShare must be above 0 and at most 1"),
        ({"max_share": 1.5}, "maxErrorShare must be above 0 and at most 1"),
        ({"timeout": 0.0}, "timeoutSeconds must be above 0"),
    ],
)
def test_a_value_out_of_its_bounds_names_the_field(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RewardErrorConfig(**values)
