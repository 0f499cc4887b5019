"""What `rollcall convert verl` writes is admitted as it is, and gets all that a job has."""

from pathlib import Path

import pytest
import yaml

from rollcall_local.api_server.admission import admit
from rollcall_local.convert.command import main
from rollcall_operator.kube.resources import RL_JOBS
from rollcall_operator.plan_command import children

CONFIGS = Path(__file__).with_name("configs")


@pytest.mark.parametrize("words", [[], ["trainer.total_training_steps=100"]], ids=["epochs", "max"])
@pytest.mark.parametrize("config", sorted(path.stem for path in CONFIGS.iterdir()))
def test_the_job_of_a_quick_start_is_admitted_and_planned(
    config: str, words: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "rljob.yaml"
    assert main(["verl", str(CONFIGS / f"{config}.yaml"), *words, "-o", str(file)]) == 0
    admitted = admit(RL_JOBS, yaml.safe_load(file.read_text()), None)
    assert admitted["spec"]["algorithm"]["name"] in ("grpo", "ppo")
    planned = list(yaml.safe_load_all(children(file.read_text(), namespace="default")))
    kinds = {each["kind"] for each in planned}
    assert {"StatefulSet", "Deployment", "RolloutPool"} <= kinds
