"""When supervised training ends."""

import pytest

from rollcall_protocol.supervised_config import SupervisedConfig


def test_steps_or_passes_or_one_pass() -> None:
    assert SupervisedConfig(rows_per_step=3, max_steps=5).steps(10) == 5
    assert SupervisedConfig(rows_per_step=3, epochs=3).steps(10) == 12
    assert SupervisedConfig(rows_per_step=3).steps(10) == 4
    stored_before = SupervisedConfig(rows_per_step=3, max_steps=5, epochs=1)
    assert stored_before.steps(10) == 5, "one pass was the default"


def test_both_are_refused() -> None:
    with pytest.raises(ValueError, match="maxSteps and epochs are both given"):
        SupervisedConfig(max_steps=5, epochs=2)
