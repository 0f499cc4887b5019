"""verl's own manager and RollcallManager, with verl's workers as actors of Ray on this machine."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from verl.checkpoint_engine import CheckpointEngineManager

from rollcall.verl import RollcallManager
from rollcall_protocol.wire.roster import EpochCause
from tests.plugins.trainers_of_ones_own.verl.actors import (
    Replica,
    Sender,
    checkpoint_engine,
    checksum,
    start_ray,
    weights,
    worker_group,
)
from tests.process.harness import FAST, LocalJob
from tests.process.pods import AT_IMPORT
from tests.unit.rollcall_runtime.jobs import external_job_config

pytestmark = pytest.mark.timeout(300)
QUICK = {**FAST, "heartbeat": 0.2, "suspect_after": 1.0}


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    os.environ |= AT_IMPORT
    start_ray()
    yield
    ray.shutdown()


class RayJob:
    """A job whose pods are processes of Ray's."""

    def __init__(self, job: LocalJob) -> None:
        self.job = job
        self.actor = worker_group(Sender, job.trainer.variables)
        self.replicas: list[Replica] = []

    async def add(self) -> Replica:
        """Another replica, in a pod on the roster."""
        pod = self.job.place()
        await self.job.push_roster(EpochCause.MEMBERS_JOINED)
        replica = await asyncio.to_thread(Replica, len(self.replicas), pod.variables)
        self.replicas.append(replica)
        return replica

    def manager(self, cls: type) -> Any:
        """As verl's trainers make it."""
        return cls(checkpoint_engine(), self.actor, list(self.replicas))

    async def loaded(self, *replicas: Replica) -> list[str]:
        return [await replica.loaded() for replica in replicas]


def of(step: int) -> str:
    return checksum(dict(weights(step)))


@asynccontextmanager
async def ray_job(folder: Path) -> AsyncIterator[RayJob]:
    """With two replicas."""
    async with LocalJob(folder, external_job_config(membership=QUICK)) as job:
        made = await asyncio.to_thread(RayJob, job)
        await asyncio.gather(*made.actor.execute_checkpoint_engine(["prepare"]))
        job.operator.start()
        await job.push_roster(EpochCause.JOB_STARTED)
        for _ in range(2):
            await made.add()
        try:
            yield made
        finally:
            for replica in made.replicas:
                await replica.kill()
            for worker in made.actor.workers:
                ray.kill(worker)


async def test_verls_own_manager_updates_and_stops_with_the_first_dead_replica(
    tmp_path: Path,
) -> None:
    async with ray_job(tmp_path) as job:
        manager, (first, second) = job.manager(CheckpointEngineManager), job.replicas
        for step in (1, 2, 3):
            figures = await manager.update_weights(step)
            assert figures["rollcall/members"] == 2
            assert await job.loaded(first, second) == [of(step)] * 2
            assert [await first.generates(), await second.generates()] == [True, True]
        await first.kill()
        with pytest.raises(ray.exceptions.RayActorError):
            await manager.update_weights(4)
        async with asyncio.timeout(10):  # the survivor is stopped, and stays so
            while await second.generates():
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        assert not await second.generates()
        assert await job.loaded(second) == [of(3)]
        manager.remove_replicas([first])
        await manager.update_weights(5)
        assert await job.loaded(second) == [of(5)], "the members need no new group"


async def test_rollcalls_manager_leaves_dead_replicas_out_and_admits_others(tmp_path: Path) -> None:
    async with ray_job(tmp_path) as job:
        manager, (first, second) = job.manager(RollcallManager), job.replicas
        for step in (1, 2, 3):
            await manager.update_weights(step)
            assert await job.loaded(first, second) == [of(step)] * 2
        ray.kill(first.servers[0])  # and its worker lives on, as a member of the job
        await manager.update_weights(4)
        assert list(manager.left_out) == [first.replica_rank]
        assert (manager.replicas, await second.generates()) == ([second], True)
        assert await job.loaded(second) == [of(4)]
        third = await job.add()
        await second.servers[0].abort_all_requests.remote()  # to see whether it is touched
        await asyncio.to_thread(manager.add_replicas, [third])
        assert await job.loaded(second, third) == [of(4)] * 2
        assert not await second.generates(), "who was there is left alone"
        await third.workers[0].die_in_the_middle.remote()
        await manager.update_weights(5)
        assert (manager.replicas, await second.generates()) == ([second], True)
        assert await job.loaded(second) == [of(5)]
        stops = await second.stops()
        with pytest.raises(ray.exceptions.RayTaskError, match="the second"):
            await manager.update_weights(-1)
        assert await second.stops() == stops, "it generates until the weights are there"
        assert await job.loaded(second) == [of(5)]
        figures = await manager.update_weights(6)
        assert await job.loaded(second) == [of(6)]
        assert figures["rollcall/members"] == 1, "who was left out is no member any more"
        await asyncio.to_thread(manager.finish, 6)
        finished = (await job.job.finished(seconds=5)).snapshot.finished
        assert finished is not None
        assert finished.step == 6
