"""Another job, whose coordinator attacks the operator while a job is soaked."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.attacks import hostile_service
from hack.cluster.examples import example
from hack.cluster.kubectl import wait_for
from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_protocol.pod_contract import MEMBERSHIP_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.cluster.kubectl import Kubectl

NAME = "hostile"
_PROGRAM = Path(hostile_service.__file__)
_FOLDER = "/program"
_LISTENS = ("--host", "0.0.0.0", "--port", str(MEMBERSHIP_PORT))
_ALWAYS = {"exec": {"command": ["true"]}}  # nothing there answers a probe
SECONDS = 180.0  # for the operator to cut it off, on a busy machine


def manifests() -> list[dict[str, Any]]:
    """The program that attacks, and a job with it for a trainer and without rollouts."""
    program = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME},
        "data": {_PROGRAM.name: _PROGRAM.read_text(encoding="utf-8")},
    }
    job = example("plain-loop/rljob.yaml", name=NAME)
    (pool,) = job["spec"]["rollouts"]
    pool["replicas"] = 0
    pod = job["spec"]["trainer"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {
        # Elsewhere it would have a processor of its own.
        "command": ["nice", "-n", "19", "python3", f"{_FOLDER}/{_PROGRAM.name}"],
        "args": [hostile_service.EACH, *_LISTENS, "--to", "/v1/elsewhere"],
        "startupProbe": _ALWAYS,
        "livenessProbe": _ALWAYS,
    }
    pod["volumes"] = [{"name": "program", "configMap": {"name": NAME}}]
    return [program, job]


@contextmanager
def hostile_job(kubectl: Kubectl, namespace: str) -> Iterator[Callable[[], list[str]]]:
    """It attacks in a namespace of its own within the `with`.

    What is yielded waits until the operator has cut the job off, and says what it did not do.
    """
    within = kubectl.fresh_namespace(namespace)

    def violations() -> list[str]:
        try:
            wait_for("the hostile job is cut off", lambda: _is_cut_off(within), seconds=SECONDS)
        except TimeoutError as error:
            return [str(error)]
        return []

    try:
        within.apply(*manifests())
        yield violations
    finally:
        kubectl.run("delete", "namespace", namespace, "--wait=false")


def _is_cut_off(kubectl: Kubectl) -> bool:
    found = kubectl.job(NAME).get("status", {}).get("conditions", ())
    return any(
        c["type"] == JobCondition.COORDINATOR_CONNECTED
        and c["reason"] == Reason.COORDINATOR_SENDS_TOO_MUCH
        for c in found
    )
