"""Weight recovery: from which rollout, of which step, and when the checkpoint is used instead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollcall_protocol.pod_contract import WEIGHTS_ROUTE
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.coordinator.sync_group_driver import WeightHolder
from rollcall_runtime.membership.published_versions import TrainerIncarnation
from rollcall_runtime.sync.weights.catch_up import weights_handler
from rollcall_runtime.sync.weights.snapshots import Snapshotter
from rollcall_runtime.train import weight_recovery
from rollcall_runtime.train.weight_recovery import WeightRecovery

OLD, LAST = Lineage(1, 1), Lineage(1, 2)
INCARNATIONS = (TrainerIncarnation(OLD, 0, 0), TrainerIncarnation(LAST, 61, 50))
PUBLISHED: dict[Version, WeightManifest] = {}
RECOVERY = WeightRecovery(tickets=lambda *_: ("t",), manifest_of=PUBLISHED.get, every=1)


@asynccontextmanager
async def rollout(version: Version, weight: float) -> AsyncIterator[WeightHolder]:
    draft = Snapshotter(bucket_bytes=64).take([("weight", torch.tensor([weight]))], timeout=1)
    snapshot = draft.finish()
    PUBLISHED[version] = snapshot.manifest
    app = web.Application()
    handler = weights_handler(lambda asked: snapshot.share() if asked == version else None)
    app.router.add_get(WEIGHTS_ROUTE, handler)
    async with TestServer(app) as server, asyncio.timeout(10):
        yield WeightHolder(version, f"127.0.0.1:{server.port}")


def test_the_step_of_a_version_follows_from_its_incarnation() -> None:
    incarnation = TrainerIncarnation(LAST, 61, 50)
    assert [incarnation.step_of(number, every=1) for number in (61, 62, 70)] == [50, 51, 59]
    assert [incarnation.step_of(number, every=4) for number in (61, 62, 63)] == [50, 52, 56]


async def test_the_newest_weights_are_taken_with_their_step() -> None:
    older_one = rollout(Version(LAST, 69), 58.0)
    async with rollout(Version(LAST, 70), 59.0) as newest, older_one as older:
        taken = await RECOVERY.recover([older, newest], INCARNATIONS, step=50)
    assert taken is not None
    assert (taken.version, taken.step) == (newest.version, 59)
    assert float(taken.weights["weight"]) == 59.0


async def test_a_higher_number_of_an_incarnation_that_trained_less_is_not_newer() -> None:
    """The second incarnation began at step 50 again with numbers above all that were seen."""
    async with rollout(Version(OLD, 60), 60.0) as ahead, rollout(Version(LAST, 62), 51.0) as behind:
        taken = await RECOVERY.recover([ahead, behind], INCARNATIONS, step=50)
    assert taken is not None
    assert taken.step == 60


async def test_a_rollout_with_other_weights_than_the_published_ones_is_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    version = Version(LAST, 70)
    async with rollout(version, 666.0) as liar, rollout(version, 59.0) as honest:
        taken = await RECOVERY.recover([liar, honest], INCARNATIONS, step=50)
        assert taken is not None
        assert float(taken.weights["weight"]) == 59.0
        assert await RECOVERY.recover([liar], INCARNATIONS, step=50) is None
    assert f"{liar.address} has other weights than the trainer's {version}" in caplog.text


async def test_weights_of_which_nothing_is_recorded_are_not_believed() -> None:
    async with rollout(Version(LAST, 70), 59.0) as holder:
        del PUBLISHED[holder.version]
        assert await RECOVERY.recover([holder], INCARNATIONS, step=50) is None


async def test_versions_that_are_not_newer_or_of_an_unknown_incarnation_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign = rollout(Version(Lineage(9, 9), 99), 0.0)
    async with rollout(Version(LAST, 61), 0.0) as same, foreign as other:
        assert await RECOVERY.recover([same, other], INCARNATIONS, step=50) is None
    assert not caplog.records


async def test_the_next_holder_or_version_is_asked_when_one_is_gone() -> None:
    async with rollout(Version(LAST, 70), 0.0) as lost:
        pass
    gone = WeightHolder(Version(LAST, 69), lost.address)
    async with rollout(Version(LAST, 69), 58.0) as there:
        taken = await RECOVERY.recover([lost, gone, there], INCARNATIONS, step=50)
    assert taken is not None
    assert taken.step == 58


async def test_without_an_answer_in_time_the_checkpoint_has_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weight_recovery, "FETCH_SECONDS", 0.1)

    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.Response()

    app = web.Application()
    app.router.add_get(WEIGHTS_ROUTE, hang)
    async with TestServer(app) as server:
        holder = WeightHolder(Version(LAST, 70), f"127.0.0.1:{server.port}")
        assert await RECOVERY.recover([holder], INCARNATIONS, step=50) is None
    assert "no rollout sent its newer weights: training resumes from step 50" in caplog.text
