"""Updates of verl by its own engine `nixl` and by `rollcall`. The last line is JSON.

`.venv-verl/bin/python -m hack.bench.verl_updates [--megabytes 256] [--rounds 10]`; nothing else
should run meanwhile. One trainer rank, two replicas. Blocks of updates by verl's engine and
manager alternate with blocks by Rollcall's engine, whose updates are by verl's manager and by
Rollcall's in turn. Workers of one engine are gone before those of the other start: threads of
NIXL's never rest. Beside the seconds of an update stand those in which the replicas' servers did
not generate. Ratios are to the median of verl's block before.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import ray
from verl.checkpoint_engine import CheckpointEngineManager

from hack.bench.run_record import finish, run_record
from hack.bench.spreads import spread
from hack.bench.verl_updates import actors
from rollcall.verl import RollcallManager
from rollcall_protocol.wire.roster import EpochCause
from tests.plugins.trainers_of_ones_own.verl.actors import start_ray, worker_group
from tests.process.harness import FAST, LocalJob
from tests.process.pods import AT_IMPORT
from tests.unit.rollcall_runtime.jobs import external_job_config

REPLICAS = 2
BLOCKS, WARM_ROUNDS = 2, 2
WAYS = "verls", "stock_manager", "rollcalls_manager"


class Updated:
    """One way to update; `manager` is verl's or Rollcall's."""

    def __init__(self, manager: Any, replicas: list[Any]) -> None:
        self._manager, self._replicas = manager, replicas
        self.seconds: list[float] = []
        self.stood_still: list[float] = []

    async def update(self, step: int, *, counts: bool) -> None:
        """AssertionError unless each replica has the step's weights."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._manager.update_weights(step)
        seconds = loop.time() - began
        await asyncio.sleep(0.1)  # for what the manager did not wait for
        taken = [await replica.servers[0].taken.remote() for replica in self._replicas]
        for replica in self._replicas:
            for name, value in (await replica.workers[0].served.remote()).items():
                assert value == step % 100 + int(name.rpartition(".")[2]), name
        if counts:
            self.seconds.append(seconds)
            self.stood_still.append(max(taken))


async def measure(nbytes: int, rounds: int, engine: str) -> dict[str, Any]:
    """Seconds of each way, and their ratios to verl's own."""
    found: dict[str, Any] = {name: defaultdict(list) for name in WAYS}
    for _ in range(BLOCKS):
        async with by_nixl(nbytes) as verls:
            await updates([verls], rounds // BLOCKS)
        async with by_rollcall(nbytes, engine) as (stock, ours):
            await updates([stock, ours], rounds // BLOCKS)
        base, quiet = median(verls.seconds), median(verls.stood_still)
        for name, way in zip(WAYS, (verls, stock, ours), strict=True):
            found[name]["seconds"] += way.seconds
            found[name]["stood_still"] += way.stood_still
            found[name]["ratio"] += [seconds / base for seconds in way.seconds]
            found[name]["stood_still_ratio"] += [still / quiet for still in way.stood_still]
    spreads = {name: {key: spread(found[name][key]) for key in found[name]} for name in WAYS}
    return {"megabytes": nbytes >> 20, "engine": engine, **spreads}


async def updates(ways: list[Updated], count: int) -> None:
    """By each of them in turn, after some that do not count."""
    for number in range(WARM_ROUNDS + count):
        for way in ways:
            await way.update(number + 1, counts=number >= WARM_ROUNDS)


@asynccontextmanager
async def by_nixl(nbytes: int) -> AsyncIterator[Updated]:
    """Engine and manager of verl."""
    actor = await asyncio.to_thread(
        worker_group, actors.Sender, AT_IMPORT, backend="nixl", nbytes=nbytes
    )
    replicas = [
        await asyncio.to_thread(actors.Replica, number, "nixl", nbytes, AT_IMPORT)
        for number in range(REPLICAS)
    ]
    manager = CheckpointEngineManager(actors.engine_config("nixl"), actor, list(replicas))
    yield Updated(manager, replicas)
    end(actor, replicas)


def end(actor: Any, replicas: list[actors.Replica]) -> None:
    """All processes of a way."""
    for worker in actor.workers + [
        each for one in replicas for each in (*one.workers, *one.servers)
    ]:
        ray.kill(worker)


@asynccontextmanager
async def by_rollcall(nbytes: int, engine: str) -> AsyncIterator[tuple[Updated, Updated]]:
    """Rollcall's engine, with verl's manager and with its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with LocalJob(
            Path(folder), external_job_config(membership=FAST, weight_sync={"engine": engine})
        ) as job:
            actor = await asyncio.to_thread(
                worker_group,
                actors.Sender,
                job.trainer.variables,
                backend="rollcall",
                nbytes=nbytes,
            )
            await asyncio.gather(*actor.execute_checkpoint_engine(["prepare"]))
            job.operator.start()
            await job.push_roster(EpochCause.JOB_STARTED)
            replicas = []
            for number in range(REPLICAS):
                pod = job.place()
                await job.push_roster(EpochCause.MEMBERS_JOINED)
                replicas.append(
                    await asyncio.to_thread(
                        actors.Replica, number, "rollcall", nbytes, pod.variables
                    )
                )
            config = actors.engine_config("rollcall")
            yield (
                Updated(CheckpointEngineManager(config, actor, list(replicas)), replicas),
                Updated(RollcallManager(config, actor, list(replicas)), replicas),
            )
            end(actor, replicas)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.verl_updates", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--engine", default="auto", help="of Rollcall's weight sync")
    arguments = parser.parse_args()
    run = run_record(vars(arguments))
    os.environ |= AT_IMPORT
    start_ray()
    try:
        found = asyncio.run(measure(arguments.megabytes << 20, arguments.rounds, arguments.engine))
    finally:
        ray.shutdown()
    print(f"updates: {found}", file=sys.stderr)
    finish("verl-updates", run, {"updates": found})


if __name__ == "__main__":
    main()
