"""Completions are answered while weights are staged, on the same event loop."""

import asyncio
import multiprocessing
import statistics
import time
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import EngineRef, GroupConfig, MembershipConfig
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import (
    Completion,
    CoordinatorMessage,
    Hello,
    Sample,
    TicketKey,
    dumps,
)
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.membership.coordinator_connection import MemberStream
from rollcall_runtime.membership.driver import MemberDriver
from rollcall_runtime.rollout.inference_engine import PauseMode
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.rollout.weight_receiver import WeightReceiver, WeightReceiverSettings
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.open_engine import open_engine
from rollcall_runtime.sync.weights.snapshots import Snapshotter
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.worker.asyncio_helpers import favour_event_loop
from tests.unit.rollcall_runtime.coordinator.fake_group import ADDRESS, CONFIG, Group
from tests.unit.rollcall_runtime.credentials import ISSUER, bearer
from tests.unit.rollcall_runtime.rollout.fake_engine import FakeEngine, rollout_metrics

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

pytestmark = pytest.mark.slow

MEBIBYTES = (512, 1024, 2048, 4096)  # the first that takes long enough to tell
SECONDS = 60.0
BOUND = 0.3  # seconds for an answer, beyond what the machine delays any process
GROUP = GroupConfig("default", EngineRef("gloo"))
MEMBER = MemberId("uid-a", "b1")
TOKEN = ISSUER.pod_token(job_uid="job-uid", pod="a", pod_uid="uid-a")


def rollout(stop: Event, address: str, token: str) -> None:
    """A rollout's process: a member that stages what the trainer sends.

    Its `token` is from the test's process, whose keys the coordinator knows.
    """
    asyncio.run(_serve(stop, address, token))


async def _serve(stop: Event, address: str, token: str) -> None:
    opened = open_engine(GROUP, member=MEMBER, address=address, role=Role.RECEIVER)
    receiver = WeightReceiver(
        engine=FakeEngine(),
        stage=StagingArea(),
        served=ServedVersions(),
        settings=WeightReceiverSettings(PauseMode.KEEP, SECONDS, SECONDS),
        metrics=rollout_metrics(),
    )

    def received(message: CoordinatorMessage) -> None:
        if not isinstance(message, TicketKey):  # it is no donor
            driver.handle(message)  # type: ignore[arg-type]

    stream = MemberStream(
        url=f"http://{address}:{pod_contract.MEMBERSHIP_PORT}{pod_contract.MEMBER_STREAM_ROUTE}",
        token=lambda: token,
        hello=lambda: Hello("job-uid", "default", MEMBER, "a", "pool", address, opened.descriptor),
        opened=lambda: None,
        received=received,
        bounds=MembershipConfig(settle=0.1, ack_timeout=5, min_rollouts=1, suspect_after=60),
    )
    driver = MemberDriver(
        member=MEMBER,
        group="job-uid/default",
        engine=opened.engine,
        weight_handler=receiver,
        send=stream.send,
        join_timeout=SECONDS,
    )
    running = asyncio.create_task(stream.run())
    await asyncio.to_thread(stop.wait)
    stream.close()
    await running
    await driver.close()
    opened.engine.close()


def worst_delay(stop: Event, worst: "Synchronized[float]") -> None:
    """How late the machine wakes a process that has nothing else to do, in seconds."""
    while not stop.is_set():
        due = time.monotonic() + 0.01
        time.sleep(0.01)
        worst.value = max(worst.value, time.monotonic() - due)


async def latencies(group: Group, until: asyncio.Task[Publication]) -> list[float]:
    """Seconds from when each completion was due to be posted until its answer came."""
    lineage = group.coordinator.lineage
    assert lineage is not None
    samples = tuple(Sample((3,) * 6, (-1.0,) * 6, (0,) * 6, 0.5) for _ in range(16))
    found: list[float] = []
    due = time.monotonic()
    while not until.done():
        lease = f"lease-{len(found)}"
        body = Completion("job-uid", MEMBER, lease, Version(lineage, 0), samples)
        async with group.http.post(
            group.url(pod_contract.COMPLETIONS_ROUTE, pod_contract.COMPLETIONS_PORT),
            data=dumps(body),
            headers=bearer(TOKEN),
        ) as answer:
            assert answer.status == 409, "no such lease was given"
        found.append(time.monotonic() - due)
        due = max(due + 0.02, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
    return found


async def publish(group: Group, number: int, mebibytes: int) -> tuple[list[float], float]:
    """The `latencies` while a version is published, and the seconds which that took."""
    weights = [("weights", torch.ones(mebibytes << 20, dtype=torch.uint8))]
    snapshotter = Snapshotter(bucket_bytes=64 << 20)
    draft = await asyncio.to_thread(snapshotter.take, weights, timeout=SECONDS)
    snapshot = await asyncio.to_thread(draft.finish)
    lineage = group.coordinator.lineage
    assert lineage is not None
    began = time.monotonic()
    publishing = asyncio.create_task(group.coordinator.publish(Version(lineage, number), snapshot))
    found = await latencies(group, publishing)
    await publishing
    return found, time.monotonic() - began


async def test_completions_are_answered_while_weights_are_staged(tmp_path: Path) -> None:
    favour_event_loop()  # as a trainer does
    sync = replace(CONFIG.weight_sync, stage_timeout=SECONDS, commit_timeout=SECONDS)
    config = replace(CONFIG, weight_sync=replace(sync, join_timeout=SECONDS))
    trainer = MemberId("trainer-uid", "b1")
    opened = open_engine(GROUP, member=trainer, address=ADDRESS, role=Role.SENDER)
    context = multiprocessing.get_context("spawn")
    stop, delay = context.Event(), context.Value("d", 0.0)
    processes = [
        context.Process(target=rollout, args=(stop, ADDRESS, TOKEN)),
        context.Process(target=worst_delay, args=(stop, delay)),
    ]
    for process in processes:
        process.start()
    try:
        async with Group(tmp_path, config=config, engines=[opened]) as group:
            await group.push(1, "a")
            async with asyncio.timeout(SECONDS):
                machine = group.coordinator.groups["default"].machine
                while len(machine.seated) < 1:
                    await asyncio.sleep(0.02)
                assert (await group.coordinator.ready()).number == 0
                for number, mebibytes in enumerate(MEBIBYTES):
                    found, took = await publish(group, number, mebibytes)
                    bound = BOUND + delay.value
                    if took > 1.5 * bound:
                        break
            assert took > 1.5 * bound, f"{took:.2f} s are too short to measure"
            assert max(found) < bound
            assert statistics.median(found) < 0.1
    finally:
        stop.set()
        opened.engine.close()
        for process in processes:
            await asyncio.to_thread(process.join, 10)
            process.kill()
