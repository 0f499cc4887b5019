"""The cluster as a user reaches it: kubectl, and the pods' metrics through the API server."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from hack.cluster.errors import ClusterError

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
# On a cluster of one's own (ROLLCALL_USE_KUBECONFIG=1) images come from where `make push` put them.
PREFIX = os.environ.get("IMAGE_PREFIX", "rollcall")
TAG = os.environ.get("IMAGE_TAG", "dev")
OPERATOR_IMAGE = f"{PREFIX}/operator:{TAG}"
WORKER_IMAGE = f"{PREFIX}/worker-cpu:{TAG}"


class KubectlError(ClusterError):
    """kubectl failed; the message has its standard error."""


class Kubectl:
    """Runs the real kubectl against one cluster and namespace."""

    def __init__(self, *, binary: str, kubeconfig: str, namespace: str = "default") -> None:
        self._binary, self._kubeconfig = binary, kubeconfig
        self._command = [binary, "--namespace", namespace]
        self._environment = {**os.environ, "KUBECONFIG": kubeconfig}
        self.namespace = namespace

    def within(self, namespace: str) -> "Kubectl":
        """The same cluster, another namespace."""
        return Kubectl(binary=self._binary, kubeconfig=self._kubeconfig, namespace=namespace)

    def run(self, *arguments: str, text: str | None = None, seconds: float = 60) -> str:
        """Run kubectl; returns its standard output. Raises KubectlError."""
        said = f"kubectl {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [*self._command, *arguments],
                input=text,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
                env=self._environment,
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"{said}: no answer within {seconds:.0f} s") from error
        if done.returncode:
            raise KubectlError(f"{said}: {done.stderr.strip()}")
        return done.stdout

    def fresh_namespace(self, name: str) -> "Kubectl":
        """An empty namespace of this cluster, which takes pods of the restricted level alone."""
        self.run("delete", "namespace", name, "--ignore-not-found", seconds=180)
        self.run("create", "namespace", name)
        self.run("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        return self.within(name)

    def get(self, *arguments: str) -> dict[str, Any]:
        """One object, or a list, as JSON."""
        found: dict[str, Any] = json.loads(self.run("get", *arguments, "--output", "json"))
        return found

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """The items of a list."""
        return list(self.get(*arguments)["items"])

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Apply objects, as `kubectl apply -f` does."""
        # As JSON: kubectl reads the text 3e-3, which PyYAML does not quote, as a number.
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        self.run("apply", "--filename", "-", text=text)

    def metrics(self, pod: str) -> dict[str, float]:
        """Of a worker pod: rollcall_ and vllm: metrics, name to value (labels: last one wins)."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:9090/proxy/metrics"
        found: dict[str, float] = {}
        for line in self.run("get", "--raw", path, seconds=3).splitlines():
            if line.startswith(("rollcall_", "vllm:")):
                name, value = line.rsplit(" ", 1)
                found[name.split("{")[0]] = float(value)
        return found

    def rollouts(self, job: str) -> list[dict[str, Any]]:
        """The job's rollout pods that are not being deleted."""
        pods = self.items("pods", "--selector", f"rollcall.dev/job={job},rollcall.dev/role=rollout")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def wait_for(what: str, look: Callable[[], T | None], *, seconds: float, every: float = 0.5) -> T:
    """Call `look` until it returns something true; TimeoutError says what was awaited."""
    deadline = time.monotonic() + seconds
    trouble = ""
    while time.monotonic() < deadline:
        try:
            found = look()
        except (KubectlError, KeyError, IndexError) as error:
            trouble = f" (last trouble: {error})"
        else:
            if found:
                return found
        time.sleep(every)
    raise TimeoutError(f"{what}: not within {seconds:.0f} s{trouble}")


def name_of(thing: dict[str, Any]) -> str:
    """An object's name."""
    return str(thing["metadata"]["name"])


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod is Ready, its gate on the weights included."""
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def with_images(text: str) -> str:
    """A manifest of examples/ with the images that IMAGE_PREFIX and IMAGE_TAG name."""
    return re.sub(r"\brollcall/([-a-z0-9]+):dev\b", rf"{PREFIX}/\1:{TAG}", text)


def example(name: str, **changes: Any) -> dict[str, Any]:
    """An object of examples/, with some of its metadata or spec.algorithm changed by keyword."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    manifest: dict[str, Any] = yaml.safe_load(with_images(text))
    if "name" in changes:
        manifest["metadata"]["name"] = changes.pop("name")
    if changes:
        manifest["spec"].setdefault("algorithm", {}).update(changes)
    return manifest
