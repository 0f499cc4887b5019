"""Prompts of a rollout that is killed go on elsewhere with the tokens that it had sampled."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import CheckpointConfig, EngineRef
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberState
from rollcall_protocol.wire.json_codec import encode
from rollcall_protocol.wire.roster import DEFAULT_GROUP
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.tasks import reverse
from tests.process import recording_engines
from tests.process.harness import FAST, TRAINED_SECONDS, LocalJob
from tests.process.pods import ROOT, Pod
from tests.process.recording_engines import Moment, Row, moments, trained_rows
from tests.unit.rollcall_runtime.jobs import job_config, pool_config

# Long, as a machine may have other things to do.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

START_SECONDS = 90.0
STEP_SECONDS = 60.0
KILLS = 6
MODEL = "builtin:reverse-tiny"
PROMPT_LENGTH = len(reverse.prompt(0, seed=0))


class SlowJob(LocalJob):
    """Its first rollout takes `step_delay` seconds more for each token, the others still more; what
    they sample goes to `record`, if given, and so do the batches that are trained on.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step_delay: float,
        record: bool = False,
        checkpoint: CheckpointConfig | None = None,
        **algorithm: Any,
    ) -> None:
        self.record = folder / "record"
        self.record.mkdir()
        self._plugins = recording_engines.install(folder / "plugins")
        self._own: dict[str, Any] = {"concurrency": 2, "stepDelay": step_delay}
        self._own |= {"folder": str(self.record)} if record else {}
        trainer = EngineRef("fsdp2")
        if record:
            trainer = EngineRef(recording_engines.TRAINER, {"folder": str(self.record)})
        config = job_config(
            algorithm=algorithm, membership=FAST, trainer_engine=trainer, checkpoint=checkpoint
        )
        super().__init__(folder, config)

    def _pod(self, name: str, role: str, *, group: str = DEFAULT_GROUP) -> Pod:
        pod = super()._pod(name, role, group=group)
        paths = (ROOT / "workloads", ROOT, self._plugins)
        pod.variables["PYTHONPATH"] = ":".join(str(path) for path in paths)
        if role == "rollout":
            # Of another pace than the one before, so that not all are done at the same moment.
            own = self._own | {"stepDelay": self._own["stepDelay"] * (1 + 0.4 * len(self.rollouts))}
            pool = pool_config(sync_group=group, engine=EngineRef(recording_engines.ROLLOUT, own))
            pod.variables[pod_contract.POOL_CONFIG] = json.dumps(encode(pool))
        return pod


def all_in_sync(job: LocalJob) -> Any:
    def holds(snapshot: JobSnapshot) -> bool:
        states = {member.pod_uid: member.state for member in snapshot.members}
        return all(states.get(pod.uid) is MemberState.IN_SYNC for pod in job.rollouts)

    return holds


async def in_mid_generation(job: SlowJob, pod: Pod) -> None:
    """Wait until `pod` has just sampled tokens of a response that it has not finished."""
    seen = len(moments(job.record))
    deadline = time.monotonic() + STEP_SECONDS
    while time.monotonic() < deadline:
        found = [moment for moment in moments(job.record) if moment.pod == pod.name]
        if len(moments(job.record)) > seen and found and found[-1].kind == "sampled":
            last = found[-1].response
            if len(last.tokens) in {2, 3} and not last.finished:
                return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{pod.name} sampled nothing: {pod.log()[-2000:]}")


async def kill_with_tokens_saved(job: SlowJob, folder: Path) -> None:
    """SIGKILL the trainer when its newest checkpoint has tokens of half-done responses."""
    deadline = time.monotonic() + STEP_SECONDS
    while time.monotonic() < deadline:
        newest = max(folder.glob("step-*/state.json"), default=None)
        if newest is not None and json.loads(newest.read_text())["state"]["ledger"]["partials"]:
            job.trainer.send(signal.SIGKILL)
            await job.trainer.exited(seconds=5)
            if newest == max(folder.glob("step-*/state.json")):
                return
            await job.trainer.start()
            await job.operator.until(all_in_sync(job), seconds=START_SECONDS)
        await asyncio.sleep(0.02)
    raise AssertionError(f"no checkpoint has tokens: {job.trainer.log()[-2000:]}")


def moved_from(job: SlowJob, victim: Pod) -> list[Moment]:
    """What other rollouts were given of what `victim` had reported."""
    found = moments(job.record)
    sampled = {(m.prompt, m.response) for m in found if m.pod == victim.name}
    return [
        moment
        for moment in found
        if moment.pod != victim.name
        and moment.kind == "given"
        and (moment.prompt, moment.response) in sampled
    ]


def are_right(folder: Path, rows: list[Row]) -> bool:
    """Whether each token's log-probability is that under the version which it says sampled it."""
    return all(row.logprobs == pytest.approx(recomputed(folder, row), abs=1e-4) for row in rows)


def goes_on(row: Row, begun: Moment) -> bool:
    """Whether a sample begins with that response, to the last bit of its log-probabilities."""
    response = begun.response
    count = len(response.tokens)
    return (
        row.prompt == begun.prompt
        and row.tokens[:count] == response.tokens
        and row.logprobs[:count] == response.logprobs
        and row.versions[:count] == response.versions
    )


def goes_on_longer(row: Row, begun: Moment) -> bool:
    """Whether a sample begins with that response and has tokens behind it."""
    return goes_on(row, begun) and len(row.tokens) > len(begun.response.tokens)


def recomputed(folder: Path, row: Row) -> list[float]:
    """The log-probabilities of a sample's tokens under the versions that they say."""
    source = open_model(MODEL)
    tokens = torch.tensor([[*row.prompt, *row.tokens]])
    by_version = {}
    for version in set(row.versions):
        model = source.build()
        model.load_state_dict(recording_engines.weights(folder, version))
        with torch.inference_mode():
            by_version[version] = model(tokens[:, :-1]).log_softmax(-1)[0]
    return [
        float(by_version[version][PROMPT_LENGTH - 1 + at, token])
        for at, (token, version) in enumerate(zip(row.tokens, row.versions, strict=True))
    ]


async def test_tokens_of_a_killed_rollout_are_trained_on(tmp_path: Path) -> None:
    job = SlowJob(
        tmp_path,
        step_delay=0.1,
        record=True,
        max_steps=1_000_000,
        partial_report=0.1,
        group_size=4,
        prompts_per_step=4,
        max_concurrent_rollouts=8,
    )
    async with job:
        await job.start(rollouts=2)
        await job.operator.until(all_in_sync(job), seconds=START_SECONDS)
        await job.steps(2, seconds=STEP_SECONDS)
        victim, survivor = job.rollouts
        await in_mid_generation(job, victim)
        victim.send(signal.SIGKILL)
        await job.trainer.reaches("resumed_tokens_total", 1, seconds=STEP_SECONDS)
        await job.steps(6, seconds=STEP_SECONDS)
        prompts = await job.prompts()
        assert prompts.balanced
        assert prompts.requeued > 0
        assert (await survivor.metrics())["rollout_reward"] > 0
        resumed = (await job.trainer.metrics())["resumed_tokens_total"]
        job.trainer.send(signal.SIGTERM)
        await job.trainer.exited(seconds=20)

    moved = moved_from(job, victim)
    assert moved, "the survivor was given what the victim had reported, token for token"
    count = sum(len(moment.response.tokens) for moment in moved)
    assert count <= resumed
    rows = trained_rows(job.record)
    for begun in moved:
        continued = [row for row in rows if goes_on(row, begun)]
        assert continued, "it was trained on"
        assert are_right(job.record, continued)


async def test_tokens_in_a_checkpoint_are_trained_on_after_a_restart(tmp_path: Path) -> None:
    job = SlowJob(
        tmp_path,
        step_delay=0.1,
        record=True,
        max_steps=1_000_000,
        partial_report=0.1,
        group_size=4,
        prompts_per_step=4,
        max_concurrent_rollouts=8,
        checkpoint=CheckpointConfig(1, str(tmp_path / "saved")),
    )
    async with job:
        await job.start(rollouts=2)
        await job.operator.until(all_in_sync(job), seconds=START_SECONDS)
        await job.steps(3, seconds=STEP_SECONDS)
        await kill_with_tokens_saved(job, tmp_path / "saved")
        before = set(moments(job.record))
        await job.trainer.start()
        await job.operator.until(
            lambda s: s.boot == 2 and all_in_sync(job)(s), seconds=START_SECONDS
        )
        await job.trainer.reaches("resumed_tokens_total", 1, seconds=STEP_SECONDS)
        await job.steps(4, seconds=STEP_SECONDS)
        assert (await job.prompts()).balanced
        job.trainer.send(signal.SIGTERM)
        await job.trainer.exited(seconds=20)

    after = set(moments(job.record)) - before
    given = [moment for moment in after if moment.kind == "given" and moment.response.tokens]
    rows = trained_rows(job.record)
    continued = [row for row in rows if any(goes_on_longer(row, begun) for begun in given)]
    assert continued, "sampled before and after"
    assert are_right(job.record, continued)


async def test_it_learns_while_rollouts_are_killed_in_turn(tmp_path: Path) -> None:
    async with SlowJob(tmp_path, step_delay=0.005, partial_report=0.01, max_steps=165) as job:
        await job.start(rollouts=3)
        await job.operator.until(all_in_sync(job), seconds=START_SECONDS)
        last = job.config.algorithm.max_steps
        for kill in range(KILLS):
            due = (kill + 1) * last // (KILLS + 2)  # the last one has time to learn, too
            await job.reach(due, seconds=TRAINED_SECONDS)
            victim = job.rollouts[kill % 3]
            victim.send(signal.SIGKILL)
            await victim.exited(seconds=5)
            await victim.start()
            await job.operator.until(all_in_sync(job), seconds=START_SECONDS)
        await job.finished()
        rewards = [(await pod.metrics())["rollout_reward"] for pod in job.rollouts]
        assert min(rewards) >= 0.9, rewards
        assert (await job.trainer.metrics())["resumed_tokens_total"] > 0
        assert (await job.prompts()).balanced
