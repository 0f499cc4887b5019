"""Many jobs in a minute: what etcd holds of one job, written again under other names and uids.

The operator makes thousands of jobs in an hour on two cores. What it costs to begin with them is
the same when they are copies: all their objects are as it made them, and fit together.
"""

from __future__ import annotations

import asyncio
import base64
import re
from typing import TYPE_CHECKING

import aiohttp

from hack.bench.operator_load.job_manifests import NAMESPACE, job
from rollcall_operator.api import labels
from rollcall_operator.kube.resources import PODS, RL_JOBS
from rollcall_protocol.wire.roster import RosterMember, roster_digest
from tests.integration.cluster_user import open_user

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollcall_operator.kube.client import Object
    from tests.integration.cluster import Cluster

_WRITERS = 8
_UID = re.compile(rb"[0-9a-f]{8}(?=-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
_ALL = {"key": base64.b64encode(b"/registry/"), "range_end": base64.b64encode(b"/registry0")}


class StoredJob:
    """Keys and values of the first job's objects in etcd, and the roster in its status."""

    def __init__(
        self, stored: Sequence[tuple[bytes, bytes]], rljob: Object, pods: Iterable[Object]
    ) -> None:
        self._stored = stored
        self._name: str = rljob["metadata"]["name"]
        (group,) = rljob["status"]["syncGroups"]
        self._digest: str = group["rosterDigest"]
        self._trainer, self._rollout = sorted(
            pods, key=lambda pod: pod["metadata"]["labels"][labels.ROLE] != labels.TRAINER
        )

    def copy(self, number: int) -> list[tuple[bytes, bytes]]:
        """The same under the name and the uids of job `number`; all texts keep their lengths."""
        prefix, name = f"{number:08x}".encode(), job(number, rollouts=1)["metadata"]["name"]

        def renamed(text: bytes) -> bytes:
            return text.replace(self._name.encode(), name.encode())

        digest = self._digest_of(name, prefix.decode())
        return [
            (
                renamed(key),
                _UID.sub(prefix, renamed(value)).replace(self._digest.encode(), digest.encode()),
            )
            for key, value in self._stored
        ]

    def _digest_of(self, name: str, prefix: str) -> str:
        trainer, rollout = (prefix + pod["metadata"]["uid"][8:] for pod in self._pods)
        metadata, address = self._rollout["metadata"], self._rollout["status"]["podIP"]
        member = RosterMember(
            pod_uid=rollout,
            pod=metadata["name"].replace(self._name, name),
            address=address,
            pool=metadata["labels"][labels.POOL].replace(self._name, name),
        )
        return roster_digest(trainer, (member,))

    @property
    def _pods(self) -> tuple[Object, Object]:
        return self._trainer, self._rollout


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
    asked = {side: key.decode() for side, key in _ALL.items()}
    async with session.post("/v3/kv/range", json=asked) as response:
        response.raise_for_status()
        found = (await response.json())["kvs"]
    pairs = ((base64.b64decode(one["key"]), base64.b64decode(one["value"])) for one in found)
    part, events = f"/{NAMESPACE}/{name}".encode(), b"/registry/events/"
    return [(key, value) for key, value in pairs if part in key and not key.startswith(events)]


async def _write(session: aiohttp.ClientSession, first: StoredJob, numbers: Iterable[int]) -> None:
    for number in numbers:
        puts = [
            {"requestPut": {"key": _text(key), "value": _text(value)}}
            for key, value in first.copy(number)
        ]
        async with session.post("/v3/kv/txn", json={"success": puts}) as response:
            response.raise_for_status()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
