"""Secrets of jobs' servers are made before their pods, and again when one is gone."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.control.certificate_authority import CertificateAuthority
from rollcall_operator.control.job_certificates import AGAIN_SECONDS, JobCertificates
from rollcall_operator.kube.errors import ConflictError, RefusedError, TerminatingError
from rollcall_operator.plan.model import ObservedJob
from tests.apiserver.bad_manifests.manifests import OWN_REFERENCE
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


class Cluster:
    """Stands in for the client: keeps what is created."""

    def __init__(self) -> None:
        self.secrets: dict[str, Any] = {}
        self.refusal: Exception | None = None
        self.asked, self.now = 0, 0.0

    async def create(self, _: Any, body: dict[str, Any]) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        name = body["metadata"]["name"]
        if name in self.secrets:
            raise ConflictError(status=409, reason="AlreadyExists", message="", what="create")
        self.secrets[name] = body


def certificates(cluster: Cluster) -> JobCertificates:
    return JobCertificates(
        cast("KubeClient", cluster), CertificateAuthority.new(), clock=lambda: cluster.now
    )


def observed(changes: dict[str, Any] | None = None, *, running: bool = False) -> ObservedJob:
    simulator = JobSimulator(changes)
    simulator.converge()
    if running:
        simulator.schedule()
        simulator.run()
    return simulator.observed()


def waiting_for_volumes() -> ObservedJob:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    job = simulator.observed()
    pods = (replace(p, node="n", phase="Pending", job_uid="job-uid") for p in job.pods)
    return replace(job, pods=tuple(pods))


async def test_each_server_has_one_that_belongs_to_the_job() -> None:
    cluster = Cluster()
    assert await certificates(cluster).make(observed(OWN_REFERENCE)) == ""
    assert set(cluster.secrets) == {"bad-trainer-tls", "bad-reference-tls"}
    for made in cluster.secrets.values():
        assert made["type"] == "kubernetes.io/tls"
        (owner,) = made["metadata"]["ownerReferences"]
        assert owner["uid"] == "job-uid"


async def test_a_job_without_a_reference_of_its_own_has_the_trainers_only() -> None:
    cluster = Cluster()
    await certificates(cluster).make(observed())
    assert set(cluster.secrets) == {"bad-trainer-tls"}


@pytest.mark.parametrize(
    "tls", [{"enabled": False}, {"secretName": "mine", "caBundle": "-----BEGIN CERTIFICATE-----"}]
)
async def test_none_is_made_without_tls_nor_beside_a_users_own(tls: dict[str, Any]) -> None:
    cluster = Cluster()
    job = observed()
    assert job.job is not None
    job.job["spec"]["tls"] = tls
    await certificates(cluster).make(job)
    assert cluster.asked == 0


async def test_a_settled_job_costs_no_request_and_another_of_its_name_does() -> None:
    cluster = Cluster()
    made, job = certificates(cluster), observed()
    for _ in range(3):
        cluster.now += AGAIN_SECONDS
        await made.make(job)
    assert cluster.asked == 1
    assert job.job is not None
    job.job["metadata"]["uid"] = "another"
    await made.make(job)
    assert cluster.asked == 2


@pytest.mark.parametrize(
    "change", [{"status": {"completionTime": "2026-01-01T00:00:00Z"}}, {"spec": {"suspend": True}}]
)
async def test_a_job_without_pods_needs_none(change: dict[str, Any]) -> None:
    cluster, job = Cluster(), observed()
    assert job.job is not None
    for part, values in change.items():
        job.job.setdefault(part, {}).update(values)
    await certificates(cluster).make(job)
    assert cluster.asked == 0


async def test_an_operator_that_has_just_started_asks_for_none_whose_pods_run() -> None:
    cluster = Cluster()
    await certificates(cluster).make(observed(running=True))
    assert cluster.asked == 0


async def test_one_of_several_pods_that_waits_for_its_volumes_counts_more_than_those_that_run() -> (
    None
):
    cluster, job = Cluster(), observed(running=True)
    running = next(pod for pod in job.pods if pod.role == "trainer")
    waiting = replace(running, uid="b", node="n", phase="Pending", running=False)
    await certificates(cluster).make(replace(job, pods=(*job.pods, waiting)))
    assert set(cluster.secrets) == {"bad-trainer-tls"}


async def test_a_deleted_secret_is_made_again_while_a_pod_waits_for_it() -> None:
    cluster = Cluster()
    made, waiting = certificates(cluster), waiting_for_volumes()
    await made.make(waiting)
    cluster.secrets.clear()
    cluster.now += AGAIN_SECONDS / 2
    await made.make(waiting)
    assert cluster.secrets == {}, "not at every reconcile"
    cluster.now += AGAIN_SECONDS
    await made.make(waiting)
    assert set(cluster.secrets) == {"bad-trainer-tls"}


async def test_why_one_is_refused_is_said_and_it_is_tried_again() -> None:
    cluster = Cluster()
    made, job = certificates(cluster), observed()
    cluster.refusal = RefusedError(status=403, reason="Forbidden", message="a quota", what="create")
    problem = await made.make(job)
    assert problem == "spec.tls: the API server refuses Secret bad-trainer-tls: a quota"
    cluster.refusal = None
    assert await made.make(job) == ""
    assert set(cluster.secrets) == {"bad-trainer-tls"}


async def test_a_namespace_that_is_being_deleted_gets_none() -> None:
    cluster = Cluster()
    cluster.refusal = TerminatingError(status=403, reason="Forbidden", message="", what="create")
    with pytest.raises(TerminatingError):
        await certificates(cluster).make(observed())
