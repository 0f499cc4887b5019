"""Each command changes one thing, or says why not."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_cli.job_actions import (
    FinishedJobError,
    NoSuchObjectError,
    delete,
    drain,
    kill,
    scale,
    set_suspended,
)
from rollcall_cli.job_record import NoSuchJobError
from rollcall_operator.kube.errors import NotFoundError
from rollcall_operator.kube.resources import RL_JOBS, Resource

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


@dataclass
class Cluster:
    """One job and one pod."""

    spec: dict[str, Any] = field(default_factory=dict)
    role: str = "rollout"
    phase: str = "Running"
    merged: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[tuple[str | int, ...]] = field(default_factory=list)

    async def get(self, _: Resource, *, namespace: str, name: str) -> dict[str, Any]:
        if name != "reverse":
            raise NotFoundError(status=404, reason="NotFound", message="no such job", what="get")
        found = {"metadata": {"uid": "u0", "name": name}, "spec": self.spec}
        return found | {"status": {"phase": self.phase}}

    async def merge(self, _: Resource, *, patch: dict[str, Any], **__: str) -> None:
        self.merged.append(patch)

    async def find(self, kind: Resource, *, namespace: str, name: str) -> dict[str, Any] | None:
        if kind is RL_JOBS:
            return await self.get(kind, namespace=namespace, name=name)
        labels = {
            "rollcall.dev/role": self.role,
            "rollcall.dev/job": "reverse",
            "rollcall.dev/pool": "cpu",
        }
        found = {"metadata": {"name": name, "uid": "u1", "labels": labels}}
        return found if name == "reverse-cpu-a" else None

    async def delete(
        self, _: Resource, *, namespace: str, name: str, uid: str, grace: int | None = None
    ) -> None:
        self.deleted.append((name, uid) if grace is None else (name, uid, grace))


async def suspend(
    cluster: Cluster, name: str = "reverse", *, suspended: bool = True
) -> dict[str, Any]:
    return await set_suspended(
        cast("KubeClient", cluster), namespace="team", name=name, suspended=suspended
    )


async def drained(cluster: Cluster, pod: str) -> dict[str, Any]:
    return await drain(cast("KubeClient", cluster), namespace="team", pod=pod)


@pytest.mark.parametrize(
    ("spec", "suspended", "says"),
    [
        ({}, True, "without spec.trainer.checkpoint it will start again at step 0"),
        ({"trainer": {"checkpoint": {}}}, True, "start again at step 0"),
        ({"trainer": {"checkpoint": {"everySteps": 5}}}, True, "its last checkpoint is kept"),
        ({"suspend": True}, False, "reverse is resumed"),
    ],
)
async def test_a_job_is_suspended_and_resumed(
    spec: dict[str, Any], suspended: bool, says: str
) -> None:
    cluster = Cluster(spec)
    said = await suspend(cluster, suspended=suspended)
    assert says in said.pop("message")
    assert said == {"namespace": "team", "job": "reverse", "suspended": suspended, "changed": True}
    assert cluster.merged == [{"spec": {"suspend": suspended}}]


@pytest.mark.parametrize("suspended", [True, False])
async def test_what_is_so_already_is_said_and_not_written(suspended: bool) -> None:
    cluster = Cluster({"suspend": suspended})
    said = await suspend(cluster, suspended=suspended)
    assert "already" in said["message"]
    assert not said["changed"]
    assert cluster.merged == []


async def test_a_job_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NoSuchJobError, match="'revers' in namespace 'team'"):
        await suspend(Cluster(), "revers")


async def test_a_rollout_drains_by_its_uid() -> None:
    cluster = Cluster()
    said = await drained(cluster, "reverse-cpu-a")
    assert (
        "reverse-cpu-a drains: job reverse gives its prompts to other rollouts" in said["message"]
    )
    assert (said["pod"], said["job"], said["pool"]) == ("reverse-cpu-a", "reverse", "cpu")
    assert cluster.deleted == [("reverse-cpu-a", "u1")]


@pytest.mark.parametrize(
    ("pod", "role", "says"),
    [
        ("reverse-cpu-a", "trainer", "is no rollout"),
        ("reverse-cpu-z", "rollout", "is not in namespace 'team'"),
    ],
)
async def test_another_pod_is_not_deleted(pod: str, role: str, says: str) -> None:
    cluster = Cluster(role=role)
    with pytest.raises(NoSuchObjectError, match=says):
        await drained(cluster, pod)
    assert cluster.deleted == []


async def test_a_pod_is_killed_without_time_to_end() -> None:
    cluster = Cluster(role="trainer")
    said = await kill(cast("KubeClient", cluster), namespace="team", pod="reverse-cpu-a")
    assert said["message"] == "reverse-cpu-a is killed; another trainer takes its place"
    assert cluster.deleted == [("reverse-cpu-a", "u1", 0)]


async def test_a_pool_is_scaled() -> None:
    cluster = Cluster({"replicas": 2, "jobRef": {"name": "reverse"}})
    said = await scale(cast("KubeClient", cluster), namespace="team", pool="reverse", replicas=4)
    assert "reverse has 4 rollouts in place of 2" in said["message"]
    assert cluster.merged == [{"spec": {"replicas": 4}}]


async def test_a_pool_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NoSuchObjectError, match="no RolloutPool 'cpu' in namespace 'team'"):
        await scale(cast("KubeClient", Cluster()), namespace="team", pool="cpu", replicas=4)


async def test_a_job_is_deleted_by_its_uid() -> None:
    cluster = Cluster()
    said = await delete(cast("KubeClient", cluster), namespace="team", name="reverse")
    assert "its checkpoint volume stays" in said["message"]
    assert cluster.deleted == [("reverse", "u0")]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_job_that_is_over_is_not_changed(phase: str) -> None:
    cluster = Cluster({"jobRef": {"name": "reverse"}, "replicas": 2}, phase=phase)
    for suspended in (True, False):
        with pytest.raises(FinishedJobError, match=f"'reverse' is {phase}, which is final"):
            await suspend(cluster, suspended=suspended)
    client = cast("KubeClient", cluster)
    with pytest.raises(FinishedJobError, match=phase):
        await scale(client, namespace="team", pool="reverse", replicas=3)
    assert cluster.merged == []
