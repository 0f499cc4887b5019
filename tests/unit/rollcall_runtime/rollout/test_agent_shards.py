"""Ranks of a tensor-parallel engine under a real coordinator: each takes, keeps and gives a part.

The weights go through an engine whose receivers read (the store) and one that brings everything
(gloo); agents are whole, only their inference engines are not.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollcall_protocol.job_config import DeltaConfig, EngineRef, GroupConfig, JobConfig
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_runtime.rollout.agent import Agent, AgentDependencies, AgentSettings
from rollcall_runtime.rollout.inference_engine import PauseMode
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine
from rollcall_runtime.sync.open_engine import OpenEngine, open_engine
from rollcall_runtime.sync.weights.shards import RowShard, Shard
from rollcall_runtime.sync.weights.snapshots import Snapshotter
from rollcall_runtime.worker.environment import Pod, RolloutEnvironment
from tests.networks import own_network
from tests.unit.rollcall_runtime.coordinator.fake_group import CONFIG, Group
from tests.unit.rollcall_runtime.credentials import ISSUER, trust
from tests.unit.rollcall_runtime.jobs import pool_config
from tests.unit.rollcall_runtime.rollout.fake_engine import FakeEngine, rollout_metrics
from tests.unit.rollcall_runtime.rollout.function_scorer import REVERSE

BUCKET = 1 << 10
WHOLE = 6 * 16 << 10  # bytes of six tensors
SECONDS = 10.0
_HOSTS = itertools.count(2)  # of all tests: no two ranks share an address


class RankEngine(FakeEngine):
    """Keeps the rows that it is given."""

    def __init__(self, shard: Shard | None) -> None:
        super().__init__()
        self._shard = shard
        self._version = None
        self.weights: dict[str, torch.Tensor] = {}

    @property
    def shard(self) -> Shard | None:
        return self._shard

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        given = {name: tensor.clone() for name, tensor in weights}
        await super().update_weights(
            given.items(), version=version, running=running, seconds=seconds
        )
        self.weights = given


def model(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{number}": torch.rand(64, 64, generator=generator) for number in range(6)}


def rows(weights: dict[str, torch.Tensor], shard: RowShard | None) -> dict[str, torch.Tensor]:
    rank, size = (shard.rank, shard.size) if shard else (0, 1)
    return {name: tensor.chunk(size)[rank] for name, tensor in weights.items()}


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in wanted.items()
    )


class Rank:
    """An agent, its inference engine, and its sync engine."""

    def __init__(self, name: str, shard: RowShard | None, config: JobConfig, network: str) -> None:
        self.name, self.shard, self.engine = name, shard, RankEngine(shard)
        address = f"{network}.{next(_HOSTS)}"
        member = MemberId(f"uid-{name}", "b1")
        sync = config.weight_sync
        self.sync = open_engine(
            GroupConfig("default", EngineRef(sync.engine, sync.config)),
            member=member,
            address=address,
            role=Role.RECEIVER,
            shard=shard,
        )
        environment = RolloutEnvironment(
            job=config,
            pool=pool_config(pool="pool"),
            pod=Pod(name, member.pod_uid, address),
            coordinator=f"{network}.1",
            token=lambda: ISSUER.pod_token(
                job_uid=config.uid, pod=name, pod_uid=member.pod_uid, namespace=config.namespace
            ),
            trust=trust(),
            state_dir=Path("/nowhere"),
        )
        self.agent = Agent(
            environment=environment,
            member=member,
            dependencies=AgentDependencies(
                bounds=SampleBounds(64),
                engine=self.engine,
                sync=self.sync,
                reward=REVERSE,
                settings=AgentSettings(concurrency=1),
                metrics=rollout_metrics(),
            ),
        )

    @property
    def read_bytes(self) -> int:
        assert isinstance(self.sync.engine, ThreadedEngine)
        return self.sync.engine.read_bytes

    async def serves(self, number: int) -> dict[str, torch.Tensor]:
        async with asyncio.timeout(SECONDS):
            while self.engine.version != number:
                await asyncio.sleep(0.01)
        return self.engine.weights


class Job:
    """A coordinator and ranks of it."""

    def __init__(self, folder: Path, engine: str, *, delta: bool) -> None:
        settings = {"url": f"file://{folder}/store"} if engine == "store" else {}
        sync = replace(
            CONFIG.weight_sync,
            engine=engine,
            config=settings,
            bucket_bytes=BUCKET,
            delta=DeltaConfig() if delta else None,
        )
        self.config = replace(CONFIG, weight_sync=sync)
        self.network = own_network()
        opened: OpenEngine = open_engine(
            GroupConfig("default", EngineRef(engine, settings)),
            member=MemberId("trainer-uid", "b1"),
            address=f"{self.network}.1",
            role=Role.SENDER,
        )
        self.engine = opened.engine
        self.group = Group(
            folder, config=self.config, engines=[opened], address=f"{self.network}.1"
        )
        self._taker = Snapshotter(bucket_bytes=BUCKET, buffers=4)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, shard: RowShard | None) -> Rank:
        rank = Rank(name, shard, self.config, self.network)
        self._tasks.append(asyncio.create_task(rank.agent.run()))
        return rank

    async def seated(self, epoch: int, *names: str) -> None:
        """Push a roster, and wait until all of it sits in a session."""
        await self.group.push(epoch, *names)
        machine = self.group.coordinator.groups["default"].machine
        async with asyncio.timeout(SECONDS):
            while len(machine.seated) < len(names) or machine.forming.value != "stable":
                await asyncio.sleep(0.01)

    async def publish(self, number: int, weights: dict[str, torch.Tensor]) -> None:
        lineage = self.group.coordinator.lineage
        assert lineage is not None
        snapshot = self._taker.take(weights.items(), timeout=0).finish()
        async with asyncio.timeout(SECONDS):
            await self.group.coordinator.publish(Version(lineage, number), snapshot)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def running(folder: Path, engine: str, *, delta: bool = False) -> AsyncIterator[Job]:
    job = Job(folder, engine, delta=delta)
    async with job.group:
        try:
            yield job
        finally:
            job.close()
            await asyncio.gather(*job._tasks, return_exceptions=True)
            await asyncio.to_thread(job.engine.close)


async def test_each_rank_receives_and_serves_its_rows(tmp_path: Path) -> None:
    async with running(tmp_path, "store") as job:
        ranks = [job.start("a", RowShard(0, 2)), job.start("b", RowShard(1, 2))]
        whole = job.start("c", None)
        await job.seated(1, "a", "b", "c")
        weights = model(1)
        await job.publish(1, weights)
        for rank in ranks:
            assert same(await rank.serves(1), rows(weights, rank.shard))
            assert rank.read_bytes == WHOLE // 2
        assert same(await whole.serves(1), weights)
        assert whole.read_bytes == WHOLE


async def test_an_engine_that_brings_everything_leaves_the_choice_to_the_rank(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "gloo") as job:
        ranks = [job.start("a", RowShard(0, 2)), job.start("b", RowShard(1, 2))]
        await job.seated(1, "a", "b")
        weights = model(1)
        await job.publish(1, weights)
        for rank in ranks:
            assert same(await rank.serves(1), rows(weights, rank.shard))


@pytest.mark.parametrize("newcomer", [RowShard(0, 2), RowShard(1, 2), None])
async def test_a_newcomer_catches_up_with_what_it_needs(
    tmp_path: Path, newcomer: RowShard | None
) -> None:
    async with running(tmp_path, "store") as job:
        first = job.start("a", RowShard(0, 2))
        await job.seated(1, "a")
        weights = model(1)
        await job.publish(1, weights)
        late = job.start("b", newcomer)
        await job.seated(2, "a", "b")
        assert same(await late.serves(1), rows(weights, newcomer))
        newer = model(2)
        await job.publish(2, newer)
        assert same(await first.serves(2), rows(newer, first.shard))
        assert same(await late.serves(2), rows(newer, newcomer))


async def test_a_delta_is_applied_to_the_rows_that_are_there(tmp_path: Path) -> None:
    async with running(tmp_path, "store", delta=True) as job:
        ranks = [job.start("a", RowShard(0, 2)), job.start("b", RowShard(1, 2))]
        await job.seated(1, "a", "b")
        weights = model(1)
        await job.publish(1, weights)
        for number in (2, 3):
            before = [rank.read_bytes for rank in ranks]
            weights["t3"][40, 7] = number
            weights["t5"][3, 1] = number
            await job.publish(number, weights)
            for rank, bytes_before in zip(ranks, before, strict=True):
                assert same(await rank.serves(number), rows(weights, rank.shard))
                assert rank.read_bytes - bytes_before < WHOLE / 4


async def test_a_rank_that_refuses_keeps_what_it_served(tmp_path: Path) -> None:
    async with running(tmp_path, "store") as job:
        rank = job.start("a", RowShard(0, 2))
        await job.seated(1, "a")
        weights = model(1)
        await job.publish(1, weights)
        rank.engine.refuse = RuntimeError("no")
        await job.publish(2, model(2))
        assert rank.engine.version == 1
        assert same(rank.engine.weights, rows(weights, rank.shard))
