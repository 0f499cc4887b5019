"""Logs of many pods as one."""

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_cli.job_logs import LogLine, of_epoch, of_step, parse, read_logs
from rollcall_cli.job_record import NoSuchJobError
from rollcall_operator.api.labels import WORKER_CONTAINER
from rollcall_operator.kube.errors import UnreachableError
from rollcall_operator.kube.resources import Resource

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


def written(second: int, message: str, **more: Any) -> str:
    return json.dumps({"time": f"08:00:{second:02}", "level": "info", "message": message, **more})


LOGS = {
    "j-trainer-0": "\n".join(
        [
            written(1, "rank 0 starts at step 0"),
            written(3, "step 1: reward/mean 0.1", epoch=1),
            written(7, "step 2: reward/mean 0.2", epoch=2),
        ]
    ),
    "j-cpu-a": "\n".join(
        [
            written(2, "joined", epoch=1),
            "a server's own line",
            written(5, "serves version 1", epoch=2, exception="Traceback"),
            written(9, "leaves", epoch=2),
        ]
    ),
}


class Cluster:
    def __init__(self, *, broken: str = "", pods: tuple[str, ...] = tuple(LOGS)) -> None:
        self.broken, self.pods, self.queries = broken, pods, list[dict[str, str]]()

    async def list(self, _: Resource, *, namespace: str, labels: str) -> list[dict[str, Any]]:
        assert labels == "rollcall.dev/job=j"
        roles = {"j-trainer-0": "trainer", "j-cpu-a": "rollout", "j-front-0": "front"}
        return [
            {
                "metadata": {
                    "name": name,
                    "labels": {"rollcall.dev/role": roles[name]},
                    "annotations": {WORKER_CONTAINER: "trainer"} if "trainer" in name else {},
                },
                "spec": {"containers": [{"name": "sidecar"}, {"name": "trainer"}]}
                if roles[name] == "trainer"
                else {"containers": [{"name": "mine"}]},
            }
            for name in (*self.pods, "j-front-0")
        ]

    async def read_log(self, *, name: str, query: dict[str, str], **_: Any) -> bytes:
        if name == self.broken:
            raise UnreachableError("no answer")
        self.queries.append(query)
        return LOGS[name].encode()


async def read(cluster: Cluster, since: int | None = None) -> tuple[list[LogLine], list[str]]:
    client = cast("KubeClient", cluster)
    return await read_logs(client, namespace="n", job="j", tail=100, since=since)


async def test_lines_of_trainer_and_rollouts_are_in_the_order_of_time() -> None:
    cluster = Cluster()
    lines, missing = await read(cluster, since=60)
    assert [line.message for line in lines] == [
        "rank 0 starts at step 0",
        "joined",
        "a server's own line",
        "step 1: reward/mean 0.1",
        "serves version 1",
        "step 2: reward/mean 0.2",
        "leaves",
    ]
    assert missing == []
    assert cluster.queries == [
        {"container": "trainer", "tailLines": "100", "sinceSeconds": "60"},
        {"container": "mine", "tailLines": "100", "sinceSeconds": "60"},
    ]


async def test_a_pod_that_does_not_answer_is_named_and_the_others_are_there() -> None:
    lines, missing = await read(Cluster(broken="j-cpu-a"))
    assert len(lines) == 3
    assert missing == ["the log of j-cpu-a could not be read: no answer"]


async def test_a_job_without_pods_is_an_error() -> None:
    with pytest.raises(NoSuchJobError, match="no pods of a job 'j' in namespace 'n'"):
        await read(Cluster(pods=()))


async def test_an_epoch_has_the_lines_that_name_it() -> None:
    lines, _ = await read(Cluster())
    assert {line.message for line in of_epoch(lines, 1)} == {"joined", "step 1: reward/mean 0.1"}


@pytest.mark.parametrize(
    ("step", "messages"),
    [
        (
            1,
            ["rank 0 starts at step 0", "joined", "a server's own line", "step 1: reward/mean 0.1"],
        ),
        (2, ["serves version 1", "step 2: reward/mean 0.2"]),
        (3, []),
    ],
)
async def test_a_step_has_all_lines_from_the_one_before(step: int, messages: list[str]) -> None:
    lines, _ = await read(Cluster())
    assert [line.message for line in of_step(lines, step)] == messages


def test_a_line_says_when_where_and_what() -> None:
    line = next(parse("p", written(5, "serves", epoch=2, exception="Traceback")))
    assert line.text() == "08:00:05 info    p epoch 2: serves\nTraceback"
    (plain,) = parse("p", "no JSON")
    assert (plain.time, plain.level, plain.message) == ("", "", "no JSON")
