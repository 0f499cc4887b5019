"""The control of `make demo-trl`, and its verdict."""

from pathlib import Path

import pytest
import yaml

from hack.demo.job_progress import JobProgress
from hack.demo.learning_checks import check_reported_reward
from hack.demo.trl_job import CONTROL, EXAMPLE, write_control


def test_the_control_is_the_example_without_weight_sync(tmp_path: Path) -> None:
    write_control(tmp_path)
    files = {file.name: file.read_text() for file in tmp_path.iterdir()}
    made = yaml.safe_load(files.pop("rljob.yaml"))
    example = yaml.safe_load((EXAMPLE / "rljob.yaml").read_text())
    assert made["spec"].pop("weightSync") == {"enabled": False}
    assert made["metadata"].pop("name") == CONTROL != example["metadata"].pop("name")
    assert made == example
    assert files == {name: (EXAMPLE / name).read_text() for name in files}


@pytest.mark.parametrize(("reward", "learned"), [(0.7, True), (0.69, False), (None, False)])
def test_a_job_has_learned_if_its_reward_is_high(reward: float | None, learned: bool) -> None:
    seen = JobProgress(reported_reward=reward)
    if learned:
        check_reported_reward(seen, least=0.7)
    else:
        with pytest.raises(AssertionError, match=r"under 0\.7"):
            check_reported_reward(seen, least=0.7)
