"""What is read for one job: its own objects and no other job's."""

import base64
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.api import labels
from rollcall_operator.control.job_reader import JobReader
from rollcall_operator.control.node_watch import NodeWatch
from rollcall_protocol.env import OPERATOR_TOKEN_FILE

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient

KEY = ("ns", "a")
JOB = {"kind": "RLJob", "metadata": {"namespace": "ns", "name": "a", "uid": "uid-a"}}


class Objects:
    """Stands in for the client: one answer for each kind, and the selectors that were used."""

    def __init__(self, **objects: Any) -> None:
        self.objects = objects
        self.asked: dict[str, tuple[str, str]] = {}

    async def find(self, resource: Any, *, namespace: str, name: str) -> Any:
        self.asked[resource.kind] = (namespace, name)
        return self.objects.get(resource.kind)

    async def list(
        self, resource: Any, *, namespace: str, labels: str = "", fields: str = ""
    ) -> Any:
        assert namespace == "ns"
        self.asked[resource.kind] = (labels, fields)
        return tuple(self.objects.get(resource.kind, ()))


def reader(objects: Objects) -> JobReader:
    nodes = NodeWatch(taints=(), wake=lambda _: None)
    return JobReader(cast("KubeClient", objects), clock=lambda: 0.0, nodes=nodes)


def pod(phase: str = "Running", *, ip: str = "10.0.0.1", name: str = "a-trainer-0") -> Any:
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": "uid-t"},
        "status": {"phase": phase, "podIP": ip},
    }


async def test_objects_are_selected_by_the_jobs_own_label_and_pools_by_their_job() -> None:
    objects = Objects(RLJob=JOB)
    await reader(objects).look(KEY)
    mine = (f"{labels.JOB}=a", "")
    for kind in ("Pod", "Service", "StatefulSet", "Deployment"):
        assert objects.asked[kind] == mine, kind
    assert objects.asked["RolloutPool"] == ("", "spec.jobRef.name=a")
    assert objects.asked["Secret"] == ("ns", labels.token_name("a", "uid-a"))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod(), True),
        (pod("Pending"), False),
        (pod("Failed"), False),
        (pod(ip=""), False),
        (pod(name="a-trainer-1"), False),
    ],
    ids=["running", "pending", "failed", "without an address", "another rank"],
)
async def test_the_coordinator_is_rank_zeros_pod_once_it_runs_and_has_an_address(
    found: Any, expected: bool
) -> None:
    sight = await reader(Objects(RLJob=JOB, Pod=[found])).look(KEY)
    assert (sight.coordinator is not None) is expected


async def test_the_token_is_the_operators_and_not_shown() -> None:
    encoded = base64.b64encode(b"secret-1").decode()
    objects = Objects(RLJob=JOB, Secret={"data": {OPERATOR_TOKEN_FILE: encoded}})
    sight = await reader(objects).look(KEY)
    assert (sight.token, sight.token_exists) == ("secret-1", True)
    assert "secret-1" not in repr(sight)


async def test_a_secret_that_is_no_token_gives_none() -> None:
    objects = Objects(RLJob=JOB, Secret={"data": {OPERATOR_TOKEN_FILE: "&&&"}})
    assert (await reader(objects).look(KEY)).token == ""


async def test_without_the_job_no_secret_is_read() -> None:
    objects = Objects()
    sight = await reader(objects).look(KEY)
    assert sight.gone
    assert "Secret" not in objects.asked
