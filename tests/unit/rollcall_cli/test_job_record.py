"""What is read of a job, and what is missing where its trainer does not answer."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_cli.job_record import NoSuchJobError, read_job
from rollcall_operator.kube.errors import NotFoundError, UnreachableError
from rollcall_operator.kube.resources import EVENTS, PODS, ROLLOUT_POOLS, Resource
from tests.unit.rollcall_cli.example_record import job, step_row
from tests.unit.rollcall_protocol.sample_records import sample_record

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


class Cluster:
    """Instead of the client: one job, two pools of which one is another job's, and a trainer."""

    def __init__(
        self,
        *,
        trainer: bool = True,
        answer: bytes | Exception = b"",
        samples: bytes | Exception = b"",
    ) -> None:
        self.answers = {"/history": answer, "/samples": samples}
        self.asked: list[dict[str, Any]] = []
        self.lists: dict[Resource, list[dict[str, Any]]] = {
            ROLLOUT_POOLS: [
                {"metadata": {"name": name}, "spec": {"jobRef": {"name": owner}}}
                for name, owner in (("mine", "reverse"), ("foreign", "another"))
            ],
            EVENTS: [{"reason": "EpochOpened"}],
            PODS: [{"metadata": {"name": "reverse-trainer-0"}}] if trainer else [],
        }

    async def get(self, _: Resource, *, namespace: str, name: str) -> dict[str, Any]:
        if name != "reverse":
            raise NotFoundError(status=404, reason="NotFound", message="no such job", what="get")
        return job()

    async def list(self, resource: Resource, **selectors: str) -> tuple[dict[str, Any], ...]:
        if resource is EVENTS:
            assert selectors["fields"] == "regarding.uid=job-uid"
        return tuple(self.lists[resource])

    async def read_from_pod(self, **asked: Any) -> bytes:
        self.asked.append(asked)
        answer = self.answers[asked["route"].partition("?")[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def read(cluster: Cluster, name: str = "reverse") -> Any:
    return await read_job(cast("KubeClient", cluster), namespace="team", name=name)


async def test_the_steps_come_from_the_trainers_first_pod() -> None:
    cluster = Cluster(answer=(step_row(1).line() + step_row(2).line()).encode())
    found = await read(cluster)
    assert [row.step for row in found.steps] == [1, 2]
    asked = [(each["name"], each["port"], each["route"]) for each in cluster.asked]
    assert asked == [
        ("reverse-trainer-0", 9090, "/history"),
        ("reverse-trainer-0", 9090, "/samples?order=spread&limit=256"),
    ]
    assert [pool["metadata"]["name"] for pool in found.pools] == ["mine"]
    assert not found.missing


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        (Cluster(trainer=False), "set spec.cleanPodPolicy to None"),
        (Cluster(answer=UnreachableError("get pods/proxy: TimeoutError")), "TimeoutError"),
    ],
)
async def test_without_its_trainer_the_rest_is_there(cluster: Cluster, why: str) -> None:
    found = await read(cluster)
    assert found.events
    assert not found.steps
    (sentence,) = found.missing
    assert why in sentence


async def test_recorded_responses_are_part_of_the_record() -> None:
    steps, responses = step_row(1).line().encode(), sample_record().line()
    found = await read(Cluster(answer=steps, samples=responses))
    assert found.samples == [sample_record()]
    assert found.as_json()["samples"][0]["response"] == "It is 4</s>"


async def test_responses_that_cannot_be_read_are_missing_and_the_steps_are_there() -> None:
    steps, error = step_row(1).line().encode(), UnreachableError("get pods/proxy: TimeoutError")
    found = await read(Cluster(answer=steps, samples=error))
    assert (len(found.steps), found.samples) == (1, [])
    (sentence,) = found.missing
    assert sentence.startswith("The responses could not be read from the trainer: get pods/proxy")


async def test_a_job_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NoSuchJobError, match="no RLJob 'revers' in namespace 'team'; list all"):
        await read(Cluster(), "revers")
