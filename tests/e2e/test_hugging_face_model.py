"""The rollouts learn a model in Hugging Face's format that two ranks train."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.kubectl import Kubectl, example
from hack.demo.job_progress import JobProgress, JobWatcher
from tests.engines.tiny_models import LETTERS, write_tiny_model

MODEL_PATH = "/models/tiny"
# Chance is 0.05; the task has no end of a response, which would be learned last, or never.
LEARNED = 0.75


@pytest.mark.cluster
@pytest.mark.timeout(700)
@pytest.mark.parametrize("engine", ["fsdp2"])
def test_the_rollouts_learn_with_a_tiny_qwen3(
    kubectl: Kubectl, tmp_path: Path, engine: str
) -> None:
    directory = write_tiny_model(
        tmp_path / "model", "qwen3", tied=False, characters=LETTERS, spread=0.02
    )
    # `apply` would copy it into an annotation, which may not be so long.
    config_map = json.dumps(config_map_of(directory, name="tiny-qwen3"))
    kubectl.run("create", "--filename", "-", text=config_map)
    kubectl.apply(job_of(engine))
    job = JobWatcher(kubectl, "reverse")
    first = job.until(lambda seen: len(seen.rewards) == 2, seconds=180)
    assert max(first.rewards.values()) < LEARNED / 2
    job.until(both_have_learned, seconds=450)


def both_have_learned(seen: JobProgress) -> bool:
    """Whether the samples that each of the two rollouts generated itself are right."""
    return len(seen.rewards) == 2 and min(seen.rewards.values()) >= LEARNED


def config_map_of(directory: Path, *, name: str) -> dict[str, Any]:
    """The files of `directory` as a ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "binaryData": {
            file.name: base64.b64encode(file.read_bytes()).decode() for file in directory.iterdir()
        },
    }


def job_of(engine: str) -> dict[str, Any]:
    """examples/reverse.yaml with two trainer ranks and the model of the ConfigMap."""
    manifest = example("reverse.yaml", maxSteps=5000)
    spec = manifest["spec"]
    spec["model"] = {"path": MODEL_PATH}
    spec["trainer"]["replicas"] = 2
    spec["trainer"]["engine"] = {"name": engine}
    spec["reward"] = {"function": "rollcall_runtime.tasks.repeat:reward"}
    spec["rollouts"][0]["engine"] = {"name": "transformers", "config": {"maxTokens": 6}}
    for part in (spec["trainer"], *spec["rollouts"]):
        pod = part["template"]["spec"]
        pod["volumes"] = [
            *pod.get("volumes", []),
            {"name": "model", "configMap": {"name": "tiny-qwen3"}},
        ]
        (container,) = pod["containers"]
        container["volumeMounts"] = [
            *container.get("volumeMounts", []),
            {"name": "model", "mountPath": MODEL_PATH},
        ]
    return manifest
