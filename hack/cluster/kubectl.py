"""The cluster as a user reaches it: kubectl; and what is read once a second, without one."""

import http
import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import urllib3
from kubernetes import client, config

from hack.cluster.errors import KubectlError
from rollcall_operator.api import labels
from rollcall_operator.kube.resources import PODS, RL_JOBS

T = TypeVar("T")


class ApiReader:
    """Reads from the API server of a kubeconfig, over a connection that it keeps.

    A kubectl for each reading would take a fifth of the machine.
    """

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._client: Any = None

    def get(self, path: str, *, seconds: float) -> str:
        """The body of a GET. Raises KubectlError: no answer in time, or another than 200."""
        if self._client is None:
            settings: Any = client.Configuration()
            settings.retries = False  # the next reading comes within a second
            read: Any = config.load_kube_config
            read(self._kubeconfig, client_configuration=settings)
            self._client = client.ApiClient(settings)
        method, url, headers, *_ = self._client.param_serialize(
            "GET", path, auth_settings=["BearerToken"]
        )
        try:
            answer = self._client.call_api(method, url, headers, _request_timeout=seconds)
            body = answer.read().decode()
        except (client.ApiException, urllib3.exceptions.HTTPError) as error:
            raise KubectlError(f"GET {path}: {error}") from error
        if answer.status != http.HTTPStatus.OK:
            raise KubectlError(f"GET {path}: {answer.status} {body}")
        return str(body)


class Kubectl:
    """Runs the real kubectl against one cluster and namespace."""

    def __init__(
        self,
        *,
        binary: str,
        kubeconfig: str,
        namespace: str = "default",
        reader: ApiReader | None = None,
    ) -> None:
        self._binary, self.kubeconfig = binary, kubeconfig
        self._command = [binary, "--namespace", namespace]
        self._environment = {**os.environ, "KUBECONFIG": kubeconfig}
        self._reader = reader or ApiReader(kubeconfig)
        self.namespace = namespace

    def within(self, namespace: str) -> "Kubectl":
        """The same cluster, another namespace."""
        return Kubectl(
            binary=self._binary,
            kubeconfig=self.kubeconfig,
            namespace=namespace,
            reader=self._reader,
        )

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
        for line in self._reader.get(path, seconds=3).splitlines():
            if line.startswith(("rollcall_", "vllm:")):
                name, value = line.rsplit(" ", 1)
                found[name.split("{")[0]] = float(value)
        return found

    def rollouts(self, job: str) -> list[dict[str, Any]]:
        """The job's rollout pods that are not being deleted."""
        selector = quote(f"{labels.JOB}={job},{labels.ROLE}={labels.ROLLOUT}")
        path = f"{PODS.path(namespace=self.namespace)}?labelSelector={selector}"
        pods = json.loads(self._reader.get(path, seconds=10))["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def job(self, name: str) -> dict[str, Any]:
        """The RLJob of this name, as the API server's JSON."""
        path = RL_JOBS.path(namespace=self.namespace, name=name)
        found: dict[str, Any] = json.loads(self._reader.get(path, seconds=10))
        return found


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
    """`metadata.name` of an object as the API server gives it."""
    return str(thing["metadata"]["name"])


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod is Ready, its gate on the weights included."""
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"
