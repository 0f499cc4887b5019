"""The coordinator's endpoints for the front: where rollouts serve, and agents' trajectories."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.data_config import FRONT, DataConfig, DataSource
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.prompts.trajectory_groups import rewards_of
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import to_json
from rollcall_protocol.wire.messages import ALONE, Draining, PromptCredit, Sample, loads
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_protocol.wire.trajectories import FinishedTrajectory, TrajectoryPart
from rollcall_runtime.sync.weights.tickets import sign_ticket
from tests.unit.rollcall_runtime.coordinator.fake_group import ADDRESS, CONFIG, Group, eventually
from tests.unit.rollcall_runtime.credentials import bearer

CONFIG_OF_FRONT = replace(
    CONFIG,
    front=True,
    data=DataConfig(sources=(DataSource(FRONT),)),
    algorithm=replace(CONFIG.algorithm, prompts_per_step=1),
)
POD = "job-front-0"


@asynccontextmanager
async def serving(folder: Path, *, state: LedgerState | None = None) -> AsyncIterator[Group]:
    """A group with a rollout `a` that serves version 0."""
    async with Group(folder, config=CONFIG_OF_FRONT, ledger_state=state) as group:
        await group.push(1, "a")
        await group.join("a")
        await group.coordinator.ready()
        await group.publish(0)
        yield group


async def lists(group: Group) -> AsyncIterator[tuple[ServingRollout, ...]]:
    url = group.url(pod_contract.FRONT_STREAM_ROUTE)
    async with group.http.get(url, headers=bearer(group.token(POD))) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.strip():
                yield loads(line, ServingRollouts).rollouts


def finished(
    group: Group,
    name: str,
    *,
    lineage: Lineage | None = None,
    sample: Sample | None = None,
    reward: float = 1.0,
) -> FinishedTrajectory:
    own = lineage or group.coordinator.lineage
    assert own is not None
    versions = (0, NOT_SAMPLED, 0)
    sample = sample or Sample((3, 4, 5), (-1.0, 0.0, -1.0), versions, reward)
    parts = (TrajectoryPart((1, 2), sample),)
    return FinishedTrajectory("job-uid", name, "", parts, Version(own, 0))


async def post(group: Group, trajectory: FinishedTrajectory, *, pod: str = POD) -> tuple[int, str]:
    async with group.http.post(
        group.url(pod_contract.TRAJECTORIES_ROUTE, pod_contract.COMPLETIONS_PORT),
        data=to_json(trajectory),
        headers=bearer(group.token(pod)),
    ) as answer:
        return answer.status, (await answer.json()).get("verdict", "")


async def test_the_front_learns_who_serves_and_what_to_show_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as group, asyncio.timeout(10):
        (worker,) = group._workers
        coming = lists(group)
        (rollout,) = await anext(coming)
        assert rollout.pod == "a"
        assert rollout.address == f"{ADDRESS}:{pod_contract.AGENT_PORT}"
        assert rollout.ticket == sign_ticket(worker.keys[-1].key, pod_contract.GENERATE_ROUTE)
        await worker.say(Draining("scaled down", 30.0))
        assert await anext(coming) == (), "it takes no more requests"


async def test_one_that_samples_nothing_gets_no_requests(tmp_path: Path) -> None:
    async with Group(tmp_path, config=CONFIG) as group, asyncio.timeout(10):
        await group.push(1, "a", "b")
        await group.join("a", generates=False)
        assert group.coordinator.may_generate, "b is on the roster, and has not come"
        await group.push(2, "a")
        await eventually(lambda: not group.coordinator.may_generate)
        await group.coordinator.ready()
        await group.publish(0)
        assert group.coordinator.serving_rollouts() == ServingRollouts(())
        await group.push(3, "a", "b")
        await group.join("b")
        await eventually(lambda: group.coordinator.serving_rollouts().rollouts)
        (rollout,) = group.coordinator.serving_rollouts().rollouts
        assert (rollout.pod, group.coordinator.may_generate) == ("b", True)


async def test_only_the_front_may_know(tmp_path: Path) -> None:
    async with serving(tmp_path) as group:
        url = group.url(pod_contract.FRONT_STREAM_ROUTE)
        for pod in ("a", "job-front-x", "job-front-00", "other-front-0", "job-front"):
            async with group.http.get(url, headers=bearer(group.token(pod))) as answer:
                assert answer.status == 403, pod
        assert (await post(group, finished(group, "t"), pod="a"))[0] == 403


async def test_a_group_of_trajectories_is_trained_on_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as group, asyncio.timeout(10):
        batch = asyncio.create_task(group.prompts.next_batch(0))
        assert await post(group, finished(group, "t-1")) == (200, "counted")
        assert await post(group, finished(group, "t-1")) == (200, "duplicate")
        assert not batch.done()
        assert await post(group, finished(group, "t-2", reward=0.0)) == (200, "counted")
        (item,) = await batch
        assert item.lease.tokens == (1, 2)
        assert [sample.reward for sample in item.completion.samples] == [1.0, 0.0]
        assert item.completion.samples[0].versions == (0, NOT_SAMPLED, 0)
        state = group.prompts.state()
        assert (state.counts.dispatched, state.counts.accepted) == (1, 1)
    async with serving(tmp_path / "again", state=state) as group:
        assert await post(group, finished(group, "t-1")) == (200, "duplicate")


async def test_a_trajectory_of_several_samples_is_one_of_its_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as group, asyncio.timeout(10):
        batch = asyncio.create_task(group.prompts.next_batch(0))
        split = finished(group, "t-1")
        (part,) = split.parts
        other = TrajectoryPart((1, 2, 9), replace(GOOD, tokens=(6,)))
        assert await post(group, replace(split, parts=(part, other))) == (200, "counted")
        assert not batch.done(), "a group is of two trajectories"
        assert await post(group, finished(group, "t-2", reward=0.0)) == (200, "counted")
        (item,) = await batch
        state = group.prompts.state()
    samples = item.completion.samples
    assert [sample.trajectory for sample in samples] == [0, 0, ALONE]
    assert samples[1].tokens == (9, 6)
    assert rewards_of(samples) == (1.0, 0.0)
    assert (state.counts.dispatched, state.counts.accepted) == (1, 1)


async def test_rollouts_get_no_prompts(tmp_path: Path) -> None:
    async with serving(tmp_path) as group:
        (worker,) = group._workers
        await worker.say(PromptCredit(4))
        await eventually(lambda: group.prompts._credits)
        group.prompts.dispatch()
        assert group.prompts.running() == {}


GOOD = Sample((3,), (-1.0,), (0,), 1.0)


@pytest.mark.parametrize(
    "sample",
    [
        replace(GOOD, tokens=(64,)),
        replace(GOOD, logprobs=(float("nan"),)),
        replace(GOOD, versions=(9,)),
        replace(GOOD, versions=(NOT_SAMPLED,)),
        replace(GOOD, reward=float("inf")),
        replace(GOOD, tokens=()),
    ],
)
async def test_what_cannot_be_trained_on_is_dropped(tmp_path: Path, sample: Sample) -> None:
    async with serving(tmp_path) as group:
        assert await post(group, finished(group, "t", sample=sample)) == (409, "bad_sample")


async def test_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as group:
        url = group.url(pod_contract.TRAJECTORIES_ROUTE, pod_contract.COMPLETIONS_PORT)
        longest = group.prompts.longest_message
        for body, status in (("{", 400), (" " * (longest + 1), 413)):
            async with group.http.post(
                url, data=io.BytesIO(body.encode()), headers=bearer(group.token(POD))
            ) as answer:
                assert answer.status == status
        assert group.counts.refusals == ["malformed", "long_body"]


async def test_what_a_restart_abandoned_is_dropped(tmp_path: Path) -> None:
    async with serving(tmp_path) as group:
        old = finished(group, "t", lineage=Lineage(1, 0))
        assert await post(group, old) == (409, "abandoned_lineage")
        assert group.counts.refusals == ["abandoned_lineage_trajectory"]


async def test_more_than_can_be_trained_on_is_put_off(tmp_path: Path) -> None:
    async with serving(tmp_path) as group:
        found = [await post(group, finished(group, f"t-{n}")) for n in range(7)]
    assert found == [(200, "counted")] * 6 + [(503, "full")]


async def test_a_job_with_prompts_wants_none(tmp_path: Path) -> None:
    async with Group(tmp_path, config=replace(CONFIG, front=True)) as group:
        await group.push(1, "a")
        await group.join("a")
        await group.coordinator.ready()
        assert await post(group, finished(group, "t")) == (409, "not_wanted")
