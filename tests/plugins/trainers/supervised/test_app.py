"""Supervised training in pods: what the operator gets to know, and how a rank ends."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollcall_plugins.trainers.supervised import app as supervised_app
from rollcall_plugins.trainers.supervised.batches import RowCounts
from rollcall_plugins.trainers.supervised.run import SupervisedResult, SupervisedStart
from rollcall_plugins.trainers.supervised.training import SupervisedStep
from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import TrackingConfig
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.messages import loads
from rollcall_runtime.worker.environment import Pod, TrainerEnvironment
from rollcall_runtime.worker.errors import SpecError
from tests.networks import own_network
from tests.unit.rollcall_runtime.credentials import ISSUER, bearer, trust
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.test_tracking import scalars

STEPS = 3
CONFIG = SupervisedConfig()


def step(number: int) -> SupervisedStep:
    return SupervisedStep(
        step=number,
        steps=STEPS,
        loss=1.0,
        tokens=64,
        gradient_norm=1.0,
        learning_rate=1e-5,
        seconds=0.1,
    )


@dataclass
class FakeRank:
    """Makes its steps at once; then it is finished, or waits until it is stopped."""

    finishes: bool = True
    fails: Exception | None = None
    resumed: int = 0
    measured: dict[str, Any] = field(default_factory=dict)
    closed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> SupervisedStart:
        if self.fails is not None:
            raise self.fails
        return SupervisedStart(self.resumed, STEPS)

    def run(
        self, report: Callable[[SupervisedStep], None], stop: Callable[[], bool]
    ) -> SupervisedResult:
        for number in range(self.resumed + 1, STEPS + 1):
            report(replace(step(number), **self.measured))
        while not self.finishes and not stop():
            self.closed.wait(0.01)
        return SupervisedResult(STEPS, self.finishes, RowCounts())

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainerEnvironment:
    """Rank 0 of a trainer of one."""
    monkeypatch.setattr(supervised_app, "favour_event_loop", lambda: None)  # outlasts the test
    address = f"{own_network()}.1"
    return TrainerEnvironment(
        job=job_config(supervised=CONFIG),
        pod=Pod("chat-trainer-0", "uid-0", address),
        coordinator=address,
        token=lambda: "",
        trust=trust(),
        state_dir=tmp_path,
        rank=0,
    )


def use(rank: FakeRank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_app, "_make_rank", lambda *_, **__: rank)


async def snapshots(environment: TrainerEnvironment, until: Callable[[JobSnapshot], bool]) -> Any:
    """Follow the operator's stream until a snapshot is as wanted; it is returned."""
    url = environment.coordinator_url(
        pod_contract.MEMBERSHIP_PORT, pod_contract.OPERATOR_STREAM_ROUTE
    )
    headers = bearer(ISSUER.operator_token(job_uid=environment.job.uid))
    async with aiohttp.ClientSession(headers=headers) as session:
        while True:
            try:
                async with session.get(url) as answer:
                    assert answer.status == 200
                    async for line in answer.content:
                        if line.strip() and until(found := loads(line, JobSnapshot)):
                            return found
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.02)  # it opens with the first step


async def stop_after(environment: TrainerEnvironment, until: Callable[[JobSnapshot], bool]) -> Any:
    async with asyncio.timeout(20):
        found = await snapshots(environment, until)
    os.kill(os.getpid(), signal.SIGTERM)
    return found


async def run_beside(
    environment: TrainerEnvironment, until: Callable[[JobSnapshot], bool]
) -> JobSnapshot:
    """The app, until the operator has seen what is wanted and the pod is deleted."""
    serving = asyncio.create_task(supervised_app._serve(environment, CONFIG))
    found: JobSnapshot = await stop_after(environment, until)
    await serving
    return found


async def test_the_operator_gets_progress_and_result(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = FakeRank()
    use(rank, monkeypatch)
    found = await run_beside(environment, lambda s: s.finished is not None)
    assert (found.pod_uid, found.boot, found.roster_epoch, found.members) == ("uid-0", 1, 0, ())
    assert (found.progress.step, found.progress.max_steps) == (STEPS, STEPS)
    assert found.finished is not None
    assert (found.finished.step, found.finished.error) == (STEPS, "")
    assert rank.closed.is_set()


async def test_a_stopped_trainer_has_not_finished(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    use(FakeRank(finishes=False), monkeypatch)
    monkeypatch.setattr(supervised_app, "report_stop", said.append)
    found = await run_beside(environment, lambda s: s.progress.step == STEPS)
    assert found.finished is None
    assert said[0].startswith(f"stopped by SIGTERM after step {STEPS}")


async def test_only_the_operator_may_look(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeRank(finishes=False), monkeypatch)
    serving = asyncio.create_task(supervised_app._serve(environment, CONFIG))
    await snapshots(environment, lambda s: s.progress.step == STEPS)
    async with aiohttp.ClientSession() as session:
        for route in (pod_contract.OPERATOR_STREAM_ROUTE, pod_contract.GANG_ROUTE):
            url = environment.coordinator_url(pod_contract.MEMBERSHIP_PORT, route)
            async with session.get(url, headers={"Authorization": "Bearer guess"}) as answer:
                assert answer.status == 401
    os.kill(os.getpid(), signal.SIGTERM)
    await serving


async def test_wrong_data_end_the_rank_at_once(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = FakeRank(fails=SpecError("spec.data.prompts", "line 7 is no JSON"))
    use(rank, monkeypatch)
    with pytest.raises(SpecError, match="line 7 is no JSON"):
        await supervised_app._serve(environment, CONFIG)
    assert rank.closed.is_set()


async def test_a_restart_reports_how_far_training_was(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeRank(finishes=False, resumed=STEPS), monkeypatch)
    found = await run_beside(environment, lambda _: True)
    assert (found.progress.step, found.progress.max_steps) == (STEPS, STEPS)


async def test_a_problem_reaches_the_operator_and_figures_the_tracker(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    tracking = TrackingConfig(folder=str(tmp_path / "curves"))
    environment = replace(environment, job=replace(environment.job, tracking=tracking))
    use(FakeRank(measured={"warning": "odd", "evaluation_loss": 2.0}), monkeypatch)
    found = await run_beside(environment, lambda s: s.finished is not None)
    assert found.progress.warning == "odd"
    curves = scalars(tmp_path / "curves")
    assert curves["train/loss"] == [(number, 1.0) for number in range(1, STEPS + 1)]
    assert curves["val/loss"][-1] == (STEPS, 2.0)
