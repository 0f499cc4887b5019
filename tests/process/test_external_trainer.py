"""A trainer of one's own publishes weights to rollouts that come and go, and samples from them."""

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollcall import RollcallError, Trainer
from rollcall_protocol.wire.roster import EpochCause
from tests.process.external_job import PROMPTS, ExternalJob, external_job
from tests.process.harness import FAST, STEP_SECONDS
from tests.unit.rollcall_runtime.jobs import external_job_config

SAME = 1e-4  # of log-probabilities that another process computes from the same weights
OTHER = 1e-2


async def test_samples_are_of_the_weights_that_were_published_last(tmp_path: Path) -> None:
    async with external_job(tmp_path) as job:
        with pytest.raises(RollcallError, match="no weights were published yet; call publish"):
            await job.call(job.rollcall.generate, PROMPTS)
        versions = []
        for seed, step in enumerate([5, 5, None, 1]):  # the caller's count may do what it will
            outcome = await job.call(job.rollcall.publish, job.weights(seed), step)
            groups = await job.call(job.rollcall.generate, PROMPTS, 3, max_tokens=5)
            versions.append(outcome.version)
            assert outcome.left_out == {}
            assert {v for g in groups for s in g.samples for v in s.versions} == {outcome.version}
            assert job.worst_logprob(groups, job.weights(seed)) < SAME
            assert job.worst_logprob(groups, job.weights(seed + 100)) > OTHER
        assert versions == sorted(set(versions)), "each publication is a version of its own"
        assert [list(group.prompt) for group in groups] == PROMPTS
        assert [len(group.samples) for group in groups] == [3, 3]
        again = [
            await job.call(job.rollcall.generate, PROMPTS, 2, max_tokens=5, seed=7)
            for _ in range(2)
        ]
        # Log-probabilities differ by rounding: requests share batches as they happen to come.
        first, second = ([s.tokens for g in groups for s in g.samples] for groups in again)
        assert first == second
        likeliest = await job.call(job.rollcall.generate, PROMPTS, 2, max_tokens=5, temperature=0)
        assert all(group.samples[0].tokens == group.samples[1].tokens for group in likeliest)
        figures = await job.call(job.rollcall.metrics)
        assert figures["rollcall_weight_version"] == versions[-1]
        await job.call(job.rollcall.report, 8, reward=0.5)
        await job.call(job.rollcall.finish, 9)
        last = (await job.job.finished(seconds=5)).snapshot
        assert last.finished is not None
        assert (last.finished.step, last.progress.rollout_reward) == (9, 0.5)
        held = await job.held(version=versions[-1])
        for tensors in held:
            for name, tensor in job.weights(3).items():
                assert torch.equal(tensors[name], tensor), name


async def test_rollouts_that_die_and_come_cost_no_sample(tmp_path: Path) -> None:
    config = external_job_config(membership={**FAST, "heartbeat": 0.2, "suspect_after": 1.0})
    async with external_job(tmp_path, config=config) as job:
        first, second = job.job.rollouts
        await job.call(job.rollcall.publish, job.weights(0), 0)
        await job.happened("current", first, second)
        generating = asyncio.create_task(
            job.call(job.rollcall.generate, PROMPTS * 200, 2, max_tokens=5)
        )
        await asyncio.sleep(0.1)
        assert not generating.done()
        await job.kill(first)
        groups = await generating
        assert [len(group.samples) for group in groups] == [2] * 400
        assert job.worst_logprob(groups, job.weights(0)) < SAME
        await job.happened("left out", first)
        newcomer = await job.add()
        await job.happened("current", newcomer)
        async with asyncio.timeout(30):  # one that is current takes part in the next session
            members: tuple[str, ...] = ()
            while members != (second.name, newcomer.name):
                members = (await job.call(job.rollcall.publish, job.weights(1), 1)).members
        for pod in (second, newcomer):
            await job.kill(pod)
        waiting = asyncio.create_task(job.call(job.rollcall.generate, PROMPTS, 1, max_tokens=5))
        await asyncio.sleep(0.5)
        assert not waiting.done(), "there is no rollout"
        await job.add()
        groups = await waiting
        assert job.worst_logprob(groups, job.weights(1)) < SAME


@pytest.mark.slow
async def test_a_trainer_that_holds_pythons_lock_loses_no_rollout(tmp_path: Path) -> None:
    config = external_job_config(membership={**FAST, "heartbeat": 0.2, "suspect_after": 1.0})
    async with external_job(tmp_path, config=config) as job:
        await job.call(job.rollcall.publish, job.weights(0), 0)
        await job.happened("current", *job.job.rollouts)
        ctypes.PyDLL(None).usleep(3_000_000)  # three times as long as a rollout may be silent
        outcome = await job.call(job.rollcall.publish, job.weights(1), 1)
        assert outcome.members == tuple(pod.name for pod in job.job.rollouts)
        reported = [*job.reported, *job.rollcall.events()]
        assert [event for event in reported if event.kind == "left out"] == []


async def test_a_trainer_that_starts_again_finds_its_rollouts(tmp_path: Path) -> None:
    async with external_job(tmp_path) as job:
        for seed in range(3):
            before = await job.call(job.rollcall.publish, job.weights(seed), seed)
        await job.call(job.rollcall.close)
        await job.open()
        outcome = await job.call(job.rollcall.publish, job.weights(9), 1)
        assert outcome.version > before.version
        groups = await job.call(job.rollcall.generate, PROMPTS, 2, max_tokens=5)
        assert job.worst_logprob(groups, job.weights(9)) < SAME


@pytest.mark.slow
async def test_a_rollout_that_comes_while_weights_are_written_gets_those_before(
    tmp_path: Path,
) -> None:
    half, rest = threading.Event(), threading.Event()
    async with external_job(tmp_path) as job:

        def slow() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in job.weights(1).items():
                yield name, tensor
                half.set()
                rest.wait(STEP_SECONDS)

        first = await job.call(job.rollcall.publish, job.weights(0), 0)
        publishing = asyncio.create_task(job.call(job.rollcall.publish, slow(), 1))
        try:
            await asyncio.to_thread(half.wait, STEP_SECONDS)
            await job.happened("current", await job.add())
            for pod in job.job.rollouts[:2]:
                await job.kill(pod)
            groups = await job.call(job.rollcall.generate, PROMPTS, 2, max_tokens=5)
        finally:
            rest.set()
        assert {v for g in groups for s in g.samples for v in s.versions} == {first.version}
        assert job.worst_logprob(groups, job.weights(0)) < SAME
        outcome = await publishing
        assert outcome.members == (job.job.rollouts[0].name,)


async def test_a_publication_that_fails_leaves_the_weights_before(tmp_path: Path) -> None:
    async with external_job(tmp_path) as job:
        first = await job.call(job.rollcall.publish, job.weights(0), 0)

        def broken() -> Iterator[tuple[str, torch.Tensor]]:
            yield from list(job.weights(1).items())[:3]
            raise KeyError("the fourth")

        with pytest.raises(KeyError, match="the fourth"):
            await job.call(job.rollcall.publish, broken(), 1)
        with pytest.raises(RollcallError, match="came where"):
            await job.call(job.rollcall.publish, reversed(job.weights(1).items()), 1)
        groups = await job.call(job.rollcall.generate, PROMPTS, 2, max_tokens=5)
        assert {v for g in groups for s in g.samples for v in s.versions} == {first.version}
        assert job.worst_logprob(groups, job.weights(0)) < SAME
        await _refuses_a_second_publication(job)
        with pytest.raises(
            RollcallError, match=r"rollcall\.Trainer: it was called before in this pod"
        ):
            await job.call(Trainer, job.job.trainer.variables)
        outcome = await job.call(job.rollcall.publish, job.weights(2), 1)
        assert outcome.version > first.version
        with pytest.raises(RollcallError, match="the prompt's token 1000 is none of"):
            await job.call(job.rollcall.generate, [[1000]], 1)
        with pytest.raises(TimeoutError):
            await job.call(job.rollcall.generate, PROMPTS * 500, 8, max_tokens=5, timeout=0.01)
        assert len(await job.call(job.rollcall.generate, PROMPTS, 1, max_tokens=5)) == 2


@pytest.mark.slow
async def test_many_callers_at_once_need_no_threads(tmp_path: Path) -> None:
    async with external_job(tmp_path) as job:
        generate = job.rollcall.generate_async
        with pytest.raises(RollcallError, match="no weights were published yet; call publish"):
            await generate(PROMPTS)
        await job.rollcall.publish_async(job.weights(0), 0)
        threads = threading.active_count()
        left = asyncio.create_task(generate(PROMPTS * 500, 8, max_tokens=5))
        waiting = [asyncio.create_task(generate(PROMPTS, 2, max_tokens=5)) for _ in range(100)]
        await asyncio.sleep(0.1)
        assert threading.active_count() == threads
        left.cancel()
        async with asyncio.timeout(STEP_SECONDS):
            groups = [group for found in await asyncio.gather(*waiting) for group in found]
        assert [len(group.samples) for group in groups] == [2] * 200
        assert job.worst_logprob(groups, job.weights(0)) < SAME
        with pytest.raises(asyncio.CancelledError):
            await left
        with pytest.raises(TimeoutError):
            await generate(PROMPTS * 500, 8, max_tokens=5, timeout=0.01)
        with pytest.raises(RollcallError, match="n is 0; ask for 1 response or more"):
            await generate(PROMPTS, 0)
        ended = asyncio.create_task(generate(PROMPTS * 500, 8, max_tokens=5))
        await asyncio.sleep(0.1)
        os.kill(job.rollcall.coordinator_pid, signal.SIGKILL)
        with pytest.raises(RollcallError, match="the coordinator's process has ended"):
            await ended


async def _refuses_a_second_publication(job: ExternalJob) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> Iterator[tuple[str, torch.Tensor]]:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        yield from job.weights(1).items()

    first = asyncio.create_task(job.call(job.rollcall.publish, slow(), 1))
    await started.wait()
    with pytest.raises(RollcallError, match="the call before has not returned"):
        await job.call(job.rollcall.publish, job.weights(2), 1)
    go_on.set()
    await first


async def test_what_the_job_lacks_is_said_by_its_field(tmp_path: Path) -> None:
    config = external_job_config(membership=FAST, weight_sync={"engine": "glue"})
    with pytest.raises(RollcallError, match="unknown weight-sync engine 'glue'"):
        async with external_job(tmp_path, config=config, rollouts=0):
            pass


def test_elsewhere_it_says_where_it_belongs() -> None:
    with pytest.raises(RollcallError, match=r"run the program in an RLJob with trainer\.kind"):
        Trainer({})


async def test_members_of_another_job_are_refused(tmp_path: Path) -> None:
    async with external_job(tmp_path, rollouts=1) as job:
        stranger = job.job.place()
        stranger.variables["ROLLCALL_CONFIG"] = stranger.variables["ROLLCALL_CONFIG"].replace(
            "job-uid", "job-other"
        )
        await stranger.start()
        await job.job.push_roster(EpochCause.MEMBERS_JOINED)
        outcome = await job.call(job.rollcall.publish, job.weights(0), 0)
        assert outcome.members == (job.job.rollouts[0].name,)


@pytest.mark.slow
async def test_weights_of_another_shape_are_named_wherever_one_looks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As embeddings that a script resized."""
    async with external_job(tmp_path) as job:
        name, tensor = next(iter(job.weights(0).items()))
        wrong = job.weights(0) | {name: torch.cat([tensor, tensor[:1]])}
        outcome = await job.call(job.rollcall.publish, wrong, 0)
        why = f"WeightMismatchError: {name} has shape {tuple(wrong[name].shape)}"
        assert outcome.members == ()
        assert set(outcome.left_out) == {pod.name for pod in job.job.rollouts}
        assert all(why in said for said in outcome.left_out.values())
        assert all(f"without {pod.name}: " in caplog.text for pod in job.job.rollouts)
        async with asyncio.timeout(STEP_SECONDS):
            while not all(why in member.reason for member in job.job.operator.last.members):
                await asyncio.sleep(0.05)
