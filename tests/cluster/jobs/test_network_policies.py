"""NetworkPolicies of a job's pods, tried by connecting: outsiders, members, what members need.

One job and two outsiders go through all of it, in the order of the tests.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hack.cluster.examples import WORKER_IMAGE, example
from hack.cluster.kubectl import Kubectl, name_of, wait_for
from hack.demo.job_progress import JobProgress, JobWatcher
from tests.cluster.jobs import deadlines

JOB, TRAINER = "reverse", "reverse-trainer-0"
OUTSIDER, OUTSIDERS_PORT = "outsider", 8080
OPEN, REFUSED, DROPPED = "open", "refused", "dropped"
_CONNECT = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def attempt(target):
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except TimeoutError:
        return "dropped"
    except ConnectionRefusedError:
        return "refused"
    return "open"
with ThreadPoolExecutor(16) as pool:
    print(*pool.map(attempt, sys.argv[1:]))
"""

# A group of its own, so that its job and outsiders are set up once.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(deadlines.WHOLE_TEST, func_only=True),
    pytest.mark.xdist_group("network policies"),
]


@dataclass(frozen=True, slots=True)
class IsolatedJob:
    """A job that trains, and an unauthenticated client in its namespace and in another one."""

    here: Kubectl
    there: Kubectl
    watcher: JobWatcher

    def address(self, pod: str, kubectl: Kubectl | None = None) -> str:
        """A pod's address."""
        return str((kubectl or self.here).get("pod", pod)["status"]["podIP"])

    def rollouts(self) -> list[str]:
        """Names of the rollouts."""
        return [name_of(pod) for pod in self.here.rollouts(JOB)]

    def trains_on(self) -> JobProgress:
        """Wait until both rollouts are ready and ten more steps are done."""
        first = self.watcher.until(lambda seen: seen.step > 0, seconds=deadlines.STARTED).step
        return self.watcher.until(
            lambda seen: seen.ready == 2 and seen.step > first + 10, seconds=deadlines.STARTED
        )

    def set_policy(self, value: dict[str, Any]) -> None:
        """Change `spec.networkPolicy`."""
        patch = {"spec": {"networkPolicy": value}}
        self.here.run("patch", "rljob", JOB, "--type=merge", "-p", json.dumps(patch))


def outcomes(kubectl: Kubectl, pod: str, *targets: str) -> dict[str, str]:
    """What becomes of a connection from a pod to each host:port."""
    said = kubectl.run("exec", pod, "--", "python3", "-c", _CONNECT, *targets).split()
    return dict(zip(targets, said, strict=True))


def ports(address: str, *numbers: int) -> list[str]:
    return [f"{address}:{number}" for number in numbers]


def outsider() -> dict[str, Any]:
    """A pod that is no worker, and listens."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "main",
        "image": WORKER_IMAGE,
        "command": ["python3", "-m", "http.server", str(OUTSIDERS_PORT), "--directory", "/tmp"],
        "securityContext": restricted,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": OUTSIDER, "labels": {"app": OUTSIDER}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


@pytest.fixture(scope="module")
def isolated(installed: Kubectl) -> Iterator[IsolatedJob]:
    here = installed.fresh_namespace("e2e-policies")
    there = installed.fresh_namespace("e2e-other")
    here.apply(example("reverse.yaml", maxSteps=100_000), outsider())
    there.apply(outsider())
    job = IsolatedJob(here, there, JobWatcher(here, JOB))
    job.trains_on()
    for kubectl in (here, there):
        kubectl.run("wait", "--for=condition=Ready", f"pod/{OUTSIDER}", "--timeout=60s")
    yield job
    for kubectl in (here, there):
        installed.run("delete", "namespace", kubectl.namespace, "--wait=false")


def test_outsiders_reach_no_port_of_a_job_and_members_those_that_they_need(
    isolated: IsolatedJob,
) -> None:
    trainer = isolated.address(TRAINER)
    rollout, other = isolated.rollouts()
    agent = isolated.address(rollout)
    addresses = ports(trainer, 7070, 7071, 7073, 7100, 9090) + ports(agent, 7072, 9090, 30000)
    for kubectl in (isolated.here, isolated.there):
        found = outcomes(kubectl, OUTSIDER, *addresses)
        assert found == dict.fromkeys(addresses, DROPPED), kubectl.namespace
    found = outcomes(isolated.here, other, *addresses)
    assert found == dict(
        zip(addresses, [OPEN, OPEN, DROPPED, OPEN, DROPPED, OPEN, DROPPED, REFUSED], strict=True)
    )
    found = outcomes(isolated.here, TRAINER, *ports(agent, 7072, 9090))
    assert list(found.values()) == [OPEN, DROPPED]
    # The operator and monitoring are let in as well: progress is read through both.
    assert isolated.trains_on().phase == "Running"

    def is_said() -> bool:
        conditions = isolated.here.job(JOB)["status"]["conditions"]
        found = {c["type"]: c["status"] for c in conditions}
        return found.get("NetworkPoliciesEnforced") == "True"

    wait_for("NetworkPoliciesEnforced", is_said, seconds=deadlines.REACTION)


def test_listed_egress_is_all_that_members_may_connect_to(isolated: IsolatedJob) -> None:
    beside, outside = (
        f"{isolated.address(OUTSIDER, kubectl)}:{OUTSIDERS_PORT}"
        for kubectl in (isolated.here, isolated.there)
    )
    api = isolated.here.get("endpointslices", "kubernetes", "--namespace=default")
    server = f"{api['endpoints'][0]['addresses'][0]}:{api['ports'][0]['port']}"
    rollout, _ = isolated.rollouts()
    places = (beside, outside, server)

    def become(*wanted: str) -> None:
        def look() -> bool:
            pods = (TRAINER, rollout)
            found = [outcomes(isolated.here, pod, *places) for pod in pods]
            return all(tuple(one.values()) == wanted for one in found)

        wait_for(f"{places} {wanted}", look, seconds=deadlines.REACTION)

    become(OPEN, OPEN, OPEN)
    allowed = {
        "to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": OUTSIDER}}}],
        "ports": [{"port": OUTSIDERS_PORT}],
    }
    isolated.set_policy({"egress": [allowed]})
    become(OPEN, OPEN, DROPPED)
    isolated.set_policy({"egress": []})
    become(DROPPED, DROPPED, DROPPED)
    # A newcomer resolves its coordinator's name, joins, and takes part.
    isolated.here.run("delete", "pod", rollout, "--wait=false")
    wait_for(
        "another rollout", lambda: rollout not in isolated.rollouts(), seconds=deadlines.REACTION
    )
    isolated.trains_on()


def test_without_policies_every_pod_may_connect(isolated: IsolatedJob) -> None:
    isolated.set_policy({"enabled": False, "egress": None})
    (address,) = ports(isolated.address(TRAINER), 7071)

    def passes() -> bool:
        found = [
            outcomes(kubectl, OUTSIDER, address) for kubectl in (isolated.here, isolated.there)
        ]
        return all(one[address] == OPEN for one in found)

    wait_for("an open address", passes, seconds=deadlines.REACTION)
