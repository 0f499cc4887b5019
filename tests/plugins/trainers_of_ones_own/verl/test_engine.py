"""verl's checkpoint engine `rollcall`, by the calls of verl's manager, and without Ray."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from verl.checkpoint_engine import CheckpointEngineRegistry

from rollcall import RollcallError
from rollcall.verl import NAME, RollcallCheckpointEngine
from rollcall_protocol.wire.roster import EpochCause
from tests.plugins.trainers_of_ones_own.verl.stock_update import (
    Rank,
    Weights,
    begin,
    received,
    update,
)
from tests.process.harness import FAST, LocalJob
from tests.process.pods import ROOT
from tests.unit.rollcall_runtime.jobs import external_job_config

QUICK = {**FAST, "heartbeat": 0.2, "suspect_after": 1.0}


class VerlJob:
    """A job whose actor and rollouts are engines of verl, in this process."""

    def __init__(self, job: LocalJob) -> None:
        self.job = job
        self.actor = self.open_actor()
        self.other_rank = Rank(RollcallCheckpointEngine(environment=self.job.trainer.variables))
        self.rollouts: list[RollcallCheckpointEngine] = []
        self.walked = 0  # tensors that the actor's other rank took part in gathering

    def open_actor(self) -> Rank:
        """As verl's actor makes it on rank 0."""
        made = CheckpointEngineRegistry.new(
            NAME, is_master=True, bucket_size=1, environment=self.job.trainer.variables
        )
        assert isinstance(made, RollcallCheckpointEngine)
        return Rank(made)

    async def add(self) -> RollcallCheckpointEngine:
        """Another rollout, on the roster; it joins in an update."""
        pod = self.job.place()
        await self.job.push_roster(EpochCause.MEMBERS_JOINED)
        engine = RollcallCheckpointEngine(environment=pod.variables)
        self.rollouts.append(engine)
        return engine

    async def update(self, seed: int) -> tuple[dict[str, float], list[Weights]]:
        """The weights of `seed` to all rollouts."""
        walked = self._walk(seed)
        async with asyncio.timeout(60):
            return await update(
                (self.actor, self.other_rank),
                self.rollouts,
                (iter(weights(seed).items()), walked),
                step=seed,
            )

    def _walk(self, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
        for pair in weights(seed).items():
            self.walked += 1
            yield pair


def weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed": (64, 8), "layers.0": (8, 8), "norm": (8,), "head": (64, 8)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def same(found: Weights, seed: int) -> bool:
    expected = weights(seed)
    return list(found) == list(expected) and all(
        torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


@asynccontextmanager
async def verl_job(folder: Path, *, rollouts: int) -> AsyncIterator[VerlJob]:
    async with LocalJob(folder, external_job_config(membership=QUICK)) as job:
        made = VerlJob(job)
        await made.actor.call(made.actor.engine.prepare)  # the operator finds the coordinator
        job.operator.start()
        await job.push_roster(EpochCause.JOB_STARTED)
        for _ in range(rollouts):
            await made.add()
        try:
            yield made
        finally:
            await made.actor.call(made.actor.engine.close)
            for engine in made.rollouts:
                await asyncio.to_thread(engine.close)


async def test_each_update_is_received_whole_and_a_dead_rollout_costs_the_others_nothing(
    tmp_path: Path,
) -> None:
    async with verl_job(tmp_path, rollouts=2) as job:
        for seed in (1, 2, 3):
            figures, found = await job.update(seed)
            assert [same(each, seed) for each in found] == [True, True]
            assert figures["rollcall/members"] == 2
        assert job.walked == 3 * len(weights(0)), "the other rank took part in each gathering"
        dead = job.rollouts.pop(0)
        assert dead._rollout is not None
        os.kill(dead._rollout._process._process.pid, signal.SIGKILL)
        figures, found = await job.update(4)
        assert [same(each, 4) for each in found] == [True]
        await asyncio.to_thread(dead.close)
        await job.add()
        figures, found = await job.update(5)
        assert [same(each, 5) for each in found] == [True, True], "the newcomer, too"
        assert figures["rollcall/version"] == 5


async def test_a_trainer_that_starts_again_sends_no_former_weights(tmp_path: Path) -> None:
    async with verl_job(tmp_path, rollouts=2) as job:
        for seed in (1, 2):
            await job.update(seed)
        await job.actor.call(job.actor.engine.close)
        job.actor = job.open_actor()
        _, found = await job.update(3)
        assert [same(each, 3) for each in found] == [True, True]


async def test_an_update_that_fails_ends_who_waits_and_the_next_is_whole(tmp_path: Path) -> None:
    async with verl_job(tmp_path, rollouts=1) as job:
        await job.update(1)

        def broken() -> Iterator[tuple[str, torch.Tensor]]:
            yield next(iter(weights(2).items()))
            raise KeyError("the second")

        await begin((job.actor,), job.rollouts)
        waiting = asyncio.create_task(received(job.rollouts[0], 2))
        with pytest.raises(KeyError, match="the second"):
            await job.actor.send(broken(), 2)
        await asyncio.sleep(0.2)
        assert not waiting.done()
        _, found = await job.update(3)
        assert same(found[0], 3)
        with pytest.raises(RollcallError, match="the update was given up before its weights came"):
            await waiting


async def test_a_member_whose_process_died_joins_again(tmp_path: Path) -> None:
    async with verl_job(tmp_path, rollouts=2) as job:
        await job.update(1)
        engine = job.rollouts[0]
        assert engine._rollout is not None
        os.kill(engine._rollout._process._process.pid, signal.SIGKILL)
        with pytest.raises(RollcallError, match="the rollout's process has ended"):
            await job.update(2)
        _, found = await job.update(3)
        assert [same(each, 3) for each in found] == [True, True]


async def test_what_is_not_supported_is_said(tmp_path: Path) -> None:
    async with verl_job(tmp_path, rollouts=1) as job:
        twins = [job.rollouts[0]] * 2
        with pytest.raises(RollcallError, match=r"2 rollout workers run in pod .*parallel sizes"):
            await begin((job.actor,), twins)
        elsewhere = RollcallCheckpointEngine(environment=job.job.place().variables)
        with pytest.raises(RollcallError, match=r"actor run in the pods .*one pod is supported"):
            await begin((job.actor, Rank(elsewhere)), job.rollouts)
        misplaced = RollcallCheckpointEngine(is_master=True, environment=elsewhere._variables)
        with pytest.raises(RollcallError, match="rank 0 of verl's actor runs in a rollout pod"):
            misplaced.prepare()
        with pytest.raises(RollcallError, match="ROLLCALL_POD_UID is not set"):
            RollcallCheckpointEngine(environment={}).prepare()
        with pytest.raises(RollcallError, match="takes no part in an update"):
            await received(elsewhere, 1)


def test_why_it_cannot_be_loaded_is_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").write_text("raise ImportError('no such device')\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "workloads")])
    program = "import contextlib\nwith contextlib.suppress(ImportError): import rollcall.verl"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "rollcall.verl cannot be loaded: ImportError: no such device" in ended.stderr
