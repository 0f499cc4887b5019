"""The jobs that are measured are those of the examples."""

from pathlib import Path

import pytest

from hack.bench.language_model.learning_job import TASKS, settings
from hack.cluster.examples import example


@pytest.mark.parametrize("task", TASKS)
def test_settings_are_those_of_the_manifest(task: str) -> None:
    manifest = example(f"smollm/{task}.yaml")["spec"]
    config, engine = settings(task, seed=7, model=Path("/a/model"), sync=True)
    asked = manifest["algorithm"]
    assert config.algorithm.optimizer.learning_rate == float(asked["optimizer"]["learningRate"])
    assert config.algorithm.group_size == asked["groupSize"]
    assert config.reward_function == manifest["reward"]["function"]
    assert (engine.name, engine.config) == ("vllm", manifest["rollouts"][0]["engine"]["config"])
    assert (config.model, config.data.seed, config.weight_sync.enabled) == ("/a/model", 7, True)
    assert not config.export_path


def test_the_control_sends_no_weights() -> None:
    config, _ = settings("first-letter", seed=1, model=Path("/a/model"), sync=False)
    assert not config.weight_sync.enabled
