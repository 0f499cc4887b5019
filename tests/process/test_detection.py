"""How workers that die, hang or are cut off are detected, and that no other member is suspected."""

import asyncio
import signal
import time
from pathlib import Path

import pytest
from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberReport, MemberState, SessionCause
from rollcall_protocol.wire.job_snapshot import SuspicionCause as Cause
from rollcall_protocol.wire.roster import EpochCause
from tests.process import busy_interpreter, names_in_a_file
from tests.process.harness import ENDLESS, FAST, START_SECONDS, STEP_SECONDS, Lag, LocalJob, in_sync
from tests.process.pods import ROOT, Pod
from tests.process.tcp_proxy import Proxy
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(300)]

BOUND = 2.0
QUICK = {**FAST, "heartbeat": 0.5, "suspect_after": BOUND}
SLACK = 0.5  # seconds, beside what the machine itself is late


def member_report(snapshot: JobSnapshot, pod: Pod) -> MemberReport | None:
    return next((m for m in snapshot.members if m.pod_uid == pod.uid), None)


def suspected(snapshot: JobSnapshot, pod: Pod) -> bool:
    report = member_report(snapshot, pod)
    return report is not None and report.state is MemberState.SUSPECT


async def test_a_killed_rollout_is_a_suspect_as_soon_as_its_connection_ends(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        await job.train(rollouts=2)
        victim, lag = job.rollouts[0], Lag()
        killed = time.monotonic()
        victim.send(signal.SIGKILL)
        seen = await job.operator.until(lambda s: suspected(s, victim), seconds=10)
        assert seen.at - killed < SLACK + lag.stop()
        report = member_report(seen.snapshot, victim)
        assert report is not None
        assert report.cause is Cause.CONNECTION_LOST
        assert (await job.trainer.metrics())["detect_seconds_count{ConnectionLost}"] == 1


async def test_a_stopped_rollout_is_a_suspect_after_the_bound_and_comes_back(
    tmp_path: Path,
) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=QUICK)) as job:
        await job.train(rollouts=2)
        victim, lag = job.rollouts[0], Lag()
        stopped = time.monotonic()
        victim.send(signal.SIGSTOP)
        try:
            seen = await job.operator.until(lambda s: suspected(s, victim), seconds=20)
            took = seen.at - stopped
            assert BOUND - QUICK["heartbeat"] - SLACK < took < BOUND + SLACK + lag.stop()
            report = member_report(seen.snapshot, victim)
            assert report is not None
            assert (report.cause, report.reason) == (
                Cause.HEARTBEAT_MISSED,
                "nothing received for 2 s",
            )
            seen = await job.operator.until(lambda s: members(s) == 2, seconds=5)
            session = seen.snapshot.session
            assert session is not None
            assert session.cause is SessionCause.MEMBER_LOST
            assert session.detail == f"{victim.name}: HeartbeatMissed: nothing received for 2 s"
            await job.steps(3, seconds=STEP_SECONDS)
        finally:
            victim.send(signal.SIGCONT)
        await job.operator.until(
            lambda s: in_sync(s, *job.rollouts) and members(s) == 3, seconds=STEP_SECONDS
        )
        assert (await job.prompts()).balanced


@pytest.mark.parametrize(("engine", "piece"), [("gloo", 32 << 10), ("mooncake", 64 << 10)])
async def test_a_rollout_that_hangs_in_a_transfer_does_not_cost_the_transfers_timeout(
    tmp_path: Path, engine: str, piece: int
) -> None:
    """Small pieces, one by one: nearly all the time something is on its way."""
    config = job_config(
        model="builtin:reverse-64m",
        membership=QUICK,
        algorithm={**ENDLESS, "group_size": 2, "prompts_per_step": 2},
        weight_sync={
            "engine": engine,
            "config": {"operationBytes": piece, "inFlight": 1, "threads": 1},
        },
    )
    async with LocalJob(tmp_path, config) as job:
        await job.train(rollouts=2)
        before = (await job.trainer.metrics())["param_sync_stage_seconds_sum"]
        victim, lag = job.rollouts[0], Lag()
        stopped = time.monotonic()
        victim.send(signal.SIGSTOP)
        try:
            seen = await job.operator.until(lambda s: suspected(s, victim), seconds=20)
            assert seen.at - stopped < BOUND + SLACK + lag.stop()
            report = member_report(seen.snapshot, victim)
            assert report is not None
            assert report.cause is Cause.HEARTBEAT_MISSED
            assert in_sync(seen.snapshot, job.rollouts[1]), "no other rollout is suspected"
            await job.operator.until(lambda s: members(s) == 2, seconds=5)
            await job.steps(1, seconds=STEP_SECONDS)
            stage = (await job.trainer.metrics())["param_sync_stage_seconds_sum"] - before
            assert stage < config.weight_sync.stage_timeout
        finally:
            victim.send(signal.SIGCONT)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=STEP_SECONDS)


async def test_a_rollout_that_is_cut_off_comes_back_when_the_network_does(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=QUICK)) as job:
        ports = (pod_contract.MEMBERSHIP_PORT, pod_contract.COMPLETIONS_PORT)
        gate = Proxy(address=job.spare_address, target=job.trainer.address, ports=ports)
        async with gate:
            await job.start(rollouts=1)
            victim = await job.launch(**{pod_contract.COORDINATOR: job.spare_address})
            await job.push_roster(EpochCause.MEMBERS_JOINED)
            await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
            lag, cut = Lag(), time.monotonic()
            gate.cut()
            seen = await job.operator.until(lambda s: suspected(s, victim), seconds=20)
            assert seen.at - cut < BOUND + SLACK + lag.stop()
            report = member_report(seen.snapshot, victim)
            assert report is not None
            assert report.cause is Cause.HEARTBEAT_MISSED
            await victim.logs_line(
                "stream to the coordinator lost: nothing received for 4 s", seconds=2 * BOUND + 5
            )
            await job.steps(3, seconds=STEP_SECONDS)
            gate.mend()
            await job.operator.until(
                lambda s: in_sync(s, *job.rollouts) and members(s) == 3, seconds=STEP_SECONDS
            )
            assert (await job.prompts()).balanced


async def test_a_rollout_that_does_not_register_with_a_restarted_coordinator_is_reported(
    tmp_path: Path,
) -> None:
    config = job_config(
        algorithm=ENDLESS, membership=QUICK, checkpoint=CheckpointConfig(5, str(tmp_path / "saved"))
    )
    async with LocalJob(tmp_path, config) as job:
        await job.train(rollouts=2)
        hung = job.rollouts[0]
        hung.send(signal.SIGSTOP)
        try:
            job.trainer.send(signal.SIGKILL)
            await job.trainer.exited(seconds=5)
            await job.trainer.start()
            seen = await job.operator.until(
                lambda s: s.boot == 2 and suspected(s, hung), seconds=START_SECONDS
            )
            report = member_report(seen.snapshot, hung)
            assert report is not None
            assert report.cause is Cause.NOT_REGISTERED
            assert report.reason == "did not answer a reconnect request within 2 s"
        finally:
            hung.send(signal.SIGCONT)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=STEP_SECONDS)


async def test_a_rollout_that_clings_to_a_predecessor_is_called_to_its_successor(
    tmp_path: Path,
) -> None:
    """The name of the coordinator leads to the predecessor first, then to the successor."""
    names = tmp_path / "names"
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=QUICK)) as job:
        registered = asyncio.Event()

        async def predecessor(request: web.Request) -> web.StreamResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for _ in socket:
                registered.set()
            return socket

        app = web.Application()
        app.router.add_get(pod_contract.MEMBER_STREAM_ROUTE, predecessor)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, job.spare_address, pod_contract.MEMBERSHIP_PORT).start()
        try:
            await job.start(rollouts=1)
            names.write_text(f"coordinator.test {job.spare_address}\n")
            clinging = await job.launch(
                imports=names_in_a_file.__name__,
                **{pod_contract.COORDINATOR: "coordinator.test", names_in_a_file.NAMES: str(names)},
            )
            async with asyncio.timeout(START_SECONDS):
                await registered.wait()
            names.write_text(f"coordinator.test {job.trainer.address}\n")
            await job.push_roster(EpochCause.MEMBERS_JOINED)
            await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
            await clinging.logs_line(
                "asks for a stream to the coordinator; connected to", seconds=1
            )
            assert all(not suspected(seen.snapshot, clinging) for seen in job.operator.history)
        finally:
            await runner.cleanup()


async def test_a_rollout_that_is_busy_is_not_accused(tmp_path: Path) -> None:
    """It decodes with all cores, and a thread keeps the interpreter to itself."""
    config = job_config(algorithm=ENDLESS, membership=QUICK)
    busy = {
        "PYTHONPATH": f"{ROOT / 'workloads'}:{ROOT}",
        "OMP_NUM_THREADS": "8",
        busy_interpreter.BUSY: "yes",
    }
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=0)
        for _ in range(2):
            await job.launch(imports=busy_interpreter.__name__, **busy)
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        began = len(job.operator.history)
        await job.steps(5, seconds=3 * STEP_SECONDS)
        accused = [
            m.reason
            for seen in job.operator.history[began:]
            for m in seen.snapshot.members
            if m.state is MemberState.SUSPECT
        ]
        assert not accused


def members(snapshot: JobSnapshot) -> int:
    return snapshot.session.members if snapshot.session else 0
