"""What a trainer of one's own asks its coordinator's process for."""

from collections.abc import Callable
from typing import Any

import pytest

from rollcall_protocol.wire.external_trainer import FinishTraining, PublishWeights, ReportProgress
from rollcall_protocol.wire.ids import MAX_VERSION_NUMBER


@pytest.mark.parametrize(
    "message",
    [
        lambda step: PublishWeights(1, step, (), 0),
        lambda step: ReportProgress(1, step, None, {}),
        lambda step: FinishTraining(1, step, operator=True),
    ],
    ids=["publish", "report", "finish"],
)
def test_a_step_that_the_jobs_status_cannot_have_is_refused_where_it_is_given(
    message: Callable[[int], Any],
) -> None:
    for step in (0, MAX_VERSION_NUMBER):
        assert message(step).step == step
    for step in (-1, MAX_VERSION_NUMBER + 1):
        with pytest.raises(ValueError, match=f"step is {step}, and must be from 0 to "):
            message(step)
