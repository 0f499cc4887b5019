"""The manifests that the cases spoil, and how a case changes one."""

import copy
import re
from typing import Any

Manifest = dict[str, Any]
Changes = dict[str, Any]
"""Paths such as `spec.rollouts[0].replicas` and the value to put there."""

DELETE = object()
"""As a value: take the field away."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def _template(container: str) -> Manifest:
    return {
        "spec": {
            "containers": [
                {
                    "name": container,
                    "image": "rollcall/worker-cpu:dev",
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                }
            ]
        }
    }


def job() -> Manifest:
    """A good RLJob named `bad`, for a case to spoil."""
    return {
        "apiVersion": "rollcall.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "bad"},
        "spec": {
            "model": {"path": "builtin:reverse-tiny"},
            "data": {"prompts": "builtin:reverse"},
            "reward": {"function": "rollcall_runtime.tasks.reverse:reward"},
            "trainer": {"template": _template("trainer")},
            "rollouts": [
                {"name": "cpu", "engine": {"name": "tiny"}, "template": _template("rollout")}
            ],
            "algorithm": {"maxSteps": 200},
        },
    }


OWN_REFERENCE: Changes = {
    "spec.algorithm.settings.klCoefficient": "0.1",
    "spec.reference": {"replicas": 2, "template": _template("reference")},
}
"""A reference in pods of its own."""

FRONT: Changes = {"spec.front": {"apiKeysSecret": "agents", "template": _template("front")}}
"""Pods that answer agents."""


def supervised_job() -> Manifest:
    """The same job, but that it learns the answers in its data."""
    manifest = job()
    for field in ("algorithm", "reward", "rollouts"):
        del manifest["spec"][field]
    manifest["spec"]["supervised"] = {"epochs": 2}
    return manifest


EXTERNAL: Changes = {
    **{f"spec.{field}": DELETE for field in ("algorithm", "data", "reward")},
    "spec.trainer.kind": "External",
    "spec.trainer.template.spec.containers[0].command": ["python", "train.py"],
}
"""The trainer is a program of the user's own."""


def external_job() -> Manifest:
    """The same job, but that a program of the user's own trains it."""
    return changed(job(), EXTERNAL)


def pool() -> Manifest:
    """A good RolloutPool named `bad-pool` for the job `bad`."""
    return {
        "apiVersion": "rollcall.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": "bad-pool"},
        "spec": {
            "jobRef": {"name": "bad"},
            "engine": {"name": "tiny"},
            "template": _template("rollout"),
        },
    }


def changed(manifest: Manifest, changes: Changes) -> Manifest:
    """A copy with the changes made; maps on the way are made where they are missing."""
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        steps = [name or int(index) for name, index in _STEP.findall(path)]
        target: Any = result
        for step in steps[:-1]:
            target = target.setdefault(step, {}) if isinstance(target, dict) else target[step]
        if value is DELETE:
            del target[steps[-1]]
        elif isinstance(target, list) and steps[-1] == len(target):
            target.append(copy.deepcopy(value))
        else:
            target[steps[-1]] = copy.deepcopy(value)
    return result
