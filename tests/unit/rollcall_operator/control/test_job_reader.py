"""What is read for one job: its own objects and no other job's."""

import base64
from typing import TYPE_CHECKING, Any, cast

from rollcall_operator.api import labels
from rollcall_operator.control.job_reader import JobReader
from rollcall_protocol.pod_contract import OPERATOR_TOKEN_FILE

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
    return JobReader(cast("KubeClient", objects), clock=lambda: 0.0)


async def test_objects_are_selected_by_the_jobs_own_label_and_pools_by_their_job() -> None:
    objects = Objects(RLJob=JOB)
    await reader(objects).read(KEY)
    mine = (f"{labels.JOB}=a", "")
    for kind in ("Pod", "Service", "StatefulSet", "Deployment"):
        assert objects.asked[kind] == mine, kind
    assert objects.asked["RolloutPool"] == ("", "spec.jobRef.name=a")
    assert objects.asked["Secret"] == ("ns", labels.token_name("a", "uid-a"))


async def test_the_token_is_the_operators_and_not_shown() -> None:
    encoded = base64.b64encode(b"secret-1").decode()
    objects = Objects(RLJob=JOB, Secret={"data": {OPERATOR_TOKEN_FILE: encoded}})
    observed = await reader(objects).read(KEY)
    assert observed.operator_token == "secret-1"
    assert "secret-1" not in repr(observed)


async def test_a_secret_that_is_no_token_gives_none() -> None:
    objects = Objects(RLJob=JOB, Secret={"data": {OPERATOR_TOKEN_FILE: "&&&"}})
    assert (await reader(objects).read(KEY)).operator_token == ""


async def test_without_the_job_no_secret_is_read() -> None:
    objects = Objects()
    observed = await reader(objects).read(KEY)
    assert observed.gone
    assert "Secret" not in objects.asked
