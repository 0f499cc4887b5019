"""A program of one's own takes the weights of a job, as a rollout that samples by itself."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from rollcall import RollcallError, Rollout
from rollcall_protocol.wire.roster import EpochCause
from tests.process import rollout_program
from tests.process.external_job import PROMPTS, ExternalJob, Weights, external_job
from tests.process.harness import FAST
from tests.unit.rollcall_runtime.jobs import external_job_config

QUICK = {**FAST, "heartbeat": 0.2, "suspect_after": 1.0}


async def received(job: ExternalJob, rollout: Rollout, *, at_least: int) -> Weights:
    """All of a version, copied as an engine would."""

    def load() -> Weights:
        found = rollout.receive(at_least, timeout=30)
        return {name: tensor.clone() for name, tensor in found}

    return await job.call(load)


def same(found: Mapping[str, torch.Tensor], expected: Weights) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


async def test_what_is_published_is_received_and_never_what_it_replaced(tmp_path: Path) -> None:
    async with external_job(tmp_path, rollouts=1) as job:
        pod, rollout = await job.join()
        with pytest.raises(TimeoutError):
            await job.call(lambda: next(rollout.receive(timeout=0.1)))
        await job.call(job.rollcall.publish, job.weights(0))
        await job.happened("current", pod)
        waiting = asyncio.create_task(received(job, rollout, at_least=4))
        for seed in (1, 2):
            await job.call(job.rollcall.publish, job.weights(seed))
        assert (rollout.version, waiting.done()) == (None, False)
        for seed in (3, 4):
            outcome = await job.call(job.rollcall.publish, job.weights(seed))
            assert pod.name in outcome.members
        assert same(await waiting, job.weights(3)) or same(await waiting, job.weights(4))
        assert same(await received(job, rollout, at_least=1), job.weights(4))
        assert rollout.version == outcome.version
        groups = await job.call(job.rollcall.generate, PROMPTS, 8, max_tokens=3)
        assert [len(group.samples) for group in groups] == [8, 8], "the other rollout samples"
        await job.call(rollout.close)
        await job.happened("left out", pod)
        await job.call(rollout.close)
        with pytest.raises(RollcallError, match="the library was closed"):
            next(rollout.receive())


@pytest.mark.slow
async def test_an_iteration_that_is_left_changes_no_version_and_keeps_what_it_gave(
    tmp_path: Path,
) -> None:
    async with external_job(tmp_path, rollouts=0) as job:
        _, rollout = await job.join()
        await job.call(job.rollcall.publish, job.weights(0))
        left = next(rollout.receive(timeout=30))[1]
        whole = dict(rollout.receive())
        first = rollout.version
        running = rollout.receive()
        before = dict([next(running)])
        for seed in range(1, 7):  # more than there are buffers
            outcome = await job.call(job.rollcall.publish, job.weights(seed))
            assert outcome.left_out == {}
        assert same(before | dict(running), job.weights(0)), "it went on with what it began"
        with pytest.raises(KeyError, match="broken"):
            fails_in_the_middle(rollout)
        assert rollout.version == first
        assert torch.equal(left, next(iter(job.weights(0).values())))
        assert same(whole, job.weights(0))
        left.zero_()
        assert same(whole, job.weights(0)), "what is written stays in its own iteration"
        assert same(await received(job, rollout, at_least=outcome.version), job.weights(6))


def fails_in_the_middle(rollout: Rollout) -> None:
    for _ in rollout.receive():
        raise KeyError("broken")


async def test_a_version_is_published_once_apply_returns(tmp_path: Path) -> None:
    applied: list[tuple[int, bool]] = []
    broken = False

    def apply(version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        if broken:
            raise KeyError("the engine is busy")
        applied.append((version, same(tensors, job.weights(version))))

    async with external_job(tmp_path, rollouts=0) as job:
        pod, rollout = await job.join(apply=apply)
        outcome = await job.call(job.rollcall.publish, job.weights(1))
        assert (outcome.members, applied, rollout.version) == ((pod.name,), [(1, True)], 1)
        broken = True
        outcome = await job.call(job.rollcall.publish, job.weights(2))
        assert outcome.members == ()
        assert "KeyError: 'the engine is busy'" in outcome.left_out[pod.name]
        assert rollout.version == 1
        broken = False
        async with asyncio.timeout(30):  # it may not have come back yet
            while pod.name not in outcome.members:
                outcome = await job.call(job.rollcall.publish, job.weights(outcome.version + 1))
        assert rollout.version == outcome.version
        assert applied == [(number, True) for number, _ in applied]
        assert applied[-1][0] == outcome.version
        with pytest.raises(RollcallError, match=r"all rollouts of the job are programs"):
            await job.call(job.rollcall.generate, PROMPTS)
        with pytest.raises(RollcallError, match="joined with apply"):
            rollout.receive()


@pytest.mark.slow
async def test_one_that_is_killed_while_it_receives_is_replaced(tmp_path: Path) -> None:
    async with external_job(
        tmp_path, rollouts=0, config=external_job_config(membership=QUICK)
    ) as job:
        pod = job.job.place()
        pod.command = [sys.executable, "-m", rollout_program.__name__]
        await pod.start()
        await job.job.push_roster(EpochCause.MEMBERS_JOINED)
        outcome = await job.call(job.rollcall.publish, job.weights(0))
        assert outcome.members == (pod.name,)
        await pod.logs_line(rollout_program.RECEIVING, seconds=30)
        await job.kill(pod)
        await job.happened("left out", pod)
        newcomer, rollout = await job.join()
        assert same(await received(job, rollout, at_least=1), job.weights(0))
        assert rollout.version == outcome.version
        await job.happened("current", newcomer)
        await holds_pythons_lock(job)
        await dies(job, rollout)


async def holds_pythons_lock(job: ExternalJob) -> None:
    """For three times as long as a rollout may be silent, which loses none."""
    ctypes.PyDLL(None).usleep(3_000_000)
    outcome = await job.call(job.rollcall.publish, job.weights(1))
    assert outcome.left_out == {}
    assert "left out" not in {event.kind for event in [*job.reported, *job.rollcall.events()]}


async def dies(job: ExternalJob, rollout: Rollout) -> None:
    """The library's process: who waits learns of it."""
    waiting = asyncio.create_task(received(job, rollout, at_least=99))
    await asyncio.sleep(0.2)
    os.kill(rollout._process._process.pid, signal.SIGKILL)
    with pytest.raises(RollcallError, match="the rollout's process has ended: exit code -9"):
        await waiting


async def test_a_wrong_environment_is_said(tmp_path: Path) -> None:
    with pytest.raises(RollcallError, match=r"ROLLCALL_CONFIG is not set.* in a rollout pod of"):
        Rollout.join(environment={})
    async with external_job(tmp_path, rollouts=0) as job:
        with pytest.raises(RollcallError, match="ROLLCALL_POOL_CONFIG is not set"):
            Rollout.join(environment=job.job.trainer.variables)
        variables = job.job.place().variables
        variables["ROLLCALL_POOL_CONFIG"] = "{}"
        with pytest.raises(RollcallError, match=r"ROLLCALL_POOL_CONFIG: PoolConfig\.pool: missing"):
            await job.call(Rollout.join, environment=variables)
