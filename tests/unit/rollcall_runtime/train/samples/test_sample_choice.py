"""Groups are chosen by step and prompt alone, about as many as the share says."""

import pytest

from rollcall_protocol.job_config import SampleRecordingConfig
from rollcall_runtime.train.samples.sample_choice import chosen_groups

PROMPTS = range(100)


def chosen(share: float, *, step: int = 7, all_every: int = 0) -> int:
    recording = SampleRecordingConfig(share, all_every)
    return sum(chosen_groups(recording, step=step, prompts=PROMPTS))


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_about_the_share_of_all_groups_is_chosen(share: float) -> None:
    found = [chosen(share, step=step) for step in range(1, 101)]
    assert sum(found) / 100 == pytest.approx(100 * share, rel=0.1)
    assert len(set(found)) > 1


def test_all_or_none_may_be_asked_for() -> None:
    assert chosen(0.0) == 0
    assert chosen(1.0) == 100
    assert chosen(0.0, step=50, all_every=25) == 100
    assert chosen(0.0, step=51, all_every=25) == 0


def test_the_same_groups_are_chosen_again_and_others_in_another_step() -> None:
    recording = SampleRecordingConfig(0.5)
    first = chosen_groups(recording, step=1, prompts=PROMPTS)
    assert chosen_groups(recording, step=1, prompts=PROMPTS) == first
    assert chosen_groups(recording, step=1, prompts=[50, 3]) == [first[50], first[3]]
    assert chosen_groups(recording, step=2, prompts=PROMPTS) != first


@pytest.mark.parametrize("wrong", [{"share": -0.1}, {"share": 1.1}, {"all_every_steps": -1}])
def test_what_cannot_be_chosen_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        SampleRecordingConfig(**wrong)  # type: ignore[arg-type]
