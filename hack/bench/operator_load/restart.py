"""Many pods: the most memory that the operator takes, and how long it takes after a restart."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from typing import TYPE_CHECKING, Any

import aiohttp

from hack.bench.operator_load import etcd_gateway, many_jobs
from hack.bench.operator_load.job_manifests import NAMESPACE, job
from hack.bench.operator_load.measured_operator import MeasuredOperator, measured_operator
from rollcall_operator.api import labels
from rollcall_operator.kube.resources import PODS, RL_JOBS
from rollcall_protocol.wire.roster import RosterMember, roster_digest
from tests.apiserver.cluster_user import open_user

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollcall_operator.kube.client import Object
    from tests.apiserver.cluster import Cluster

RESTART_SECONDS = 600.0
_CONTROLLERS = ("kwok", "kube-scheduler", "kube-controller-manager")
_WRITERS = 8
_UID = re.compile(rb"[0-9a-f]{8}(?=-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
_ALL = (b"/registry/", b"/registry0")


def restart_figures(cluster: Cluster, *, jobs: int) -> dict[str, Any]:
    """Jobs of two pods; the operator that made the first ends, and another one begins with all.

    Its writes are counted until nothing has been written for a while. The other controllers do not
    run meanwhile: they would take the processor for themselves, and have nothing to write either.
    """
    with measured_operator(cluster, name="first") as first:
        asyncio.run(many_jobs.operator_figures(cluster, first, jobs=1, rollouts=1))
    for name in _CONTROLLERS:
        cluster.control.stop_program(name)
    asyncio.run(copy_first_job(cluster, jobs=jobs))
    began = time.monotonic()
    with measured_operator(cluster, name="second") as second:
        seconds = _until_reconciled(second, jobs, began)
        asyncio.run(second.settled())
        return {
            "peak_mib": round(second.peak_mib(), 1),
            "restart_seconds": round(seconds, 1),
            "writes": second.counts.read().writes(),
        }


def _until_reconciled(operator: MeasuredOperator, jobs: int, began: float) -> float:
    while operator.process.reconciles() < jobs:
        if time.monotonic() - began > RESTART_SECONDS:
            raise TimeoutError(f"{operator.process.reconciles()} of {jobs} jobs reconciled")
        time.sleep(0.5)
    return time.monotonic() - began


class StoredJob:
    """Keys and values of the first job's objects in etcd, and the roster in its status."""

    def __init__(
        self, stored: Sequence[tuple[bytes, bytes]], rljob: Object, pods: Iterable[Object]
    ) -> None:
        self._stored = stored
        self._name: str = rljob["metadata"]["name"]
        (group,) = rljob["status"]["syncGroups"]
        self._digest: str = group["rosterDigest"]
        self._pods = json.dumps(list(pods)).encode()

    def copy(self, number: int) -> list[tuple[bytes, bytes]]:
        """The same under the name and the uids of job `number`; all texts keep their lengths."""
        name, uids = job(number, rollouts=1)["metadata"]["name"], f"{number:08x}".encode()

        def copied(text: bytes) -> bytes:
            return _UID.sub(uids, text.replace(self._name.encode(), name.encode()))

        old, new = self._digest.encode(), _roster_digest(json.loads(copied(self._pods))).encode()
        return [(copied(key), copied(value).replace(old, new)) for key, value in self._stored]


def _roster_digest(pods: Iterable[Object]) -> str:
    """Of a trainer pod and a rollout."""
    trainer, rollout = sorted(
        pods, key=lambda pod: pod["metadata"]["labels"][labels.ROLE] != labels.TRAINER
    )
    metadata = rollout["metadata"]
    member = RosterMember(
        pod_uid=metadata["uid"],
        pod=metadata["name"],
        address=rollout["status"]["podIP"],
        pool=metadata["labels"][labels.POOL],
    )
    return roster_digest(trainer["metadata"]["uid"], (member,))


async def copy_first_job(cluster: Cluster, *, jobs: int) -> None:
    """Have so many jobs, with the first one, which the operator has made of one rollout."""
    name = job(0, rollouts=1)["metadata"]["name"]
    async with open_user(cluster.admin, namespace=NAMESPACE, keep=True) as user:
        rljob = await user.client.get(RL_JOBS, namespace=NAMESPACE, name=name)
        pods = await user.listed(PODS, f"{labels.JOB}={name}")
    async with aiohttp.ClientSession(cluster.control.etcd) as session:
        first = StoredJob(await _stored(session, name), rljob, pods)
        numbers = iter(range(1, jobs))
        await asyncio.gather(*(_write(session, first, numbers) for _ in range(_WRITERS)))


async def _stored(session: aiohttp.ClientSession, name: str) -> list[tuple[bytes, bytes]]:
    part, events = f"/{NAMESPACE}/{name}".encode(), b"/registry/events/"
    pairs = map(etcd_gateway.decoded, await etcd_gateway.stored(session, *_ALL))
    return [(key, value) for key, value in pairs if part in key and not key.startswith(events)]


async def _write(session: aiohttp.ClientSession, first: StoredJob, numbers: Iterable[int]) -> None:
    for number in numbers:
        pairs = itertools.starmap(etcd_gateway.encoded, first.copy(number))
        puts = [{"requestPut": pair} for pair in pairs]
        await etcd_gateway.ask(session, "txn", {"success": puts})
