"""When supervised training ends."""

import pytest

from rollcall_protocol.supervised_config import SupervisedConfig


def test_steps_or_passes_or_one_pass() -> None:
    for settings, steps in (({"max_steps": 5}, 5), ({"epochs": 3}, 12), ({}, 4)):
        assert SupervisedConfig(rows_per_step=3, **settings).steps(10) == steps


def test_both_are_refused() -> None:
    with pytest.raises(ValueError, match="maxSteps and epochs are both given"):
        SupervisedConfig(max_steps=5, epochs=1)
