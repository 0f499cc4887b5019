"""A tiny Qwen3 in Hugging Face's format, which pods read from a ConfigMap or from a claim."""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.cluster.examples import example
from hack.cluster.kubectl import Kubectl
from tests.process.engines.tiny_models import LETTERS, write_tiny_model


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume of pods: its name, where its content is from, and its path in each container."""

    name: str
    source: dict[str, Any]
    path: str

    @classmethod
    def config_map(cls, name: str, path: str) -> "Mount":
        """The files of a ConfigMap."""
        return cls(name, {"configMap": {"name": name}}, path)

    def add_to(self, *pods: dict[str, Any]) -> None:
        """Mount it into the one container of each of these pods' specs."""
        for pod in pods:
            pod["volumes"] = [*pod.get("volumes", []), {"name": self.name, **self.source}]
            (container,) = pod["containers"]
            mount = {"name": self.name, "mountPath": self.path}
            container["volumeMounts"] = [*container.get("volumeMounts", []), mount]


MODEL = Mount.config_map("tiny-qwen3", "/models/tiny")
TRAINED = Mount("trained", {"persistentVolumeClaim": {"claimName": "trained"}}, "/models/trained")


def create_model(kubectl: Kubectl, folder: Path) -> None:
    """Create the ConfigMap of MODEL: a first policy that is nearly uniform."""
    files = write_tiny_model(folder, "qwen3", tied=False, characters=LETTERS, spread=0.02)
    create_config_map(kubectl, MODEL.name, files.iterdir())


def create_config_map(kubectl: Kubectl, name: str, files: Iterable[Path]) -> None:
    """Create a ConfigMap; `apply` would copy it into an annotation, which may not be so long."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "binaryData": {file.name: base64.b64encode(file.read_bytes()).decode() for file in files},
    }
    kubectl.run("create", "--filename", "-", text=json.dumps(config_map))


def claim(name: str = TRAINED.name) -> dict[str, Any]:
    """A claim of 1 GiB; by default that of TRAINED, which some pods write and others read."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def repeat_job(model: str, *, max_steps: int) -> dict[str, Any]:
    """examples/reverse.yaml with a model that is to repeat symbols, in two rollouts."""
    manifest = example("reverse.yaml", maxSteps=max_steps)
    spec = manifest["spec"]
    spec["model"] = {"path": model}
    spec["algorithm"]["optimizer"] = {"learningRate": "1e-3"}
    spec["reward"] = {"function": "rollcall_runtime.tasks.repeat:reward"}
    # As many tokens as there are symbols: the task has no end of a response.
    spec["rollouts"][0]["engine"] = {"name": "transformers", "config": {"maxTokens": 5}}
    return manifest


def pod_specs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The specs of the pods of a job's trainer and rollouts."""
    spec = manifest["spec"]
    parts = (spec["trainer"], *spec.get("rollouts", []))
    return [part["template"]["spec"] for part in parts]
