"""A trainer rank ends because of a signal, or it has failed."""

import asyncio
import os
import signal
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import CheckpointConfig
from rollcall_runtime.train import app
from rollcall_runtime.train.checkpoint.checkpointer import TrainState
from rollcall_runtime.train.trainer_rank import TrainerRank
from rollcall_runtime.worker.environment import Pod, TrainerEnvironment
from rollcall_runtime.worker.errors import SpecError
from tests.networks import own_network
from tests.unit.rollcall_protocol.sample_records import sample_record
from tests.unit.rollcall_runtime.credentials import trust
from tests.unit.rollcall_runtime.jobs import job_config


@pytest.fixture(params=[0, 1])
def environment(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TrainerEnvironment:
    """Rank 0 and rank 1 of a trainer, without a model."""
    rank: int = request.param
    engineless = SimpleNamespace(start=TrainState, close=lambda: None)
    monkeypatch.setattr(app, "_make_rank", lambda *_: engineless)
    monkeypatch.setattr(app, "favour_event_loop", lambda: None)  # it would outlast the test
    address = f"{own_network()}.{rank + 1}"
    return TrainerEnvironment(
        job=job_config(trainer_replicas=2),
        pod=Pod(f"reverse-trainer-{rank}", f"uid-{rank}", address),
        coordinator=address,
        token=lambda: "",
        trust=trust(),
        state_dir=tmp_path,
        rank=rank,
    )


def test_only_a_pods_first_rank_answers_probes(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have its address, so the port would be taken."""
    found: list[bool] = []

    async def run(role: Any, *_: Any) -> None:
        host = role.environment.pod.address
        try:
            _reader, writer = await asyncio.open_connection(host, pod_contract.METRICS_PORT)
        except ConnectionRefusedError:
            found.append(False)
        else:
            found.append(True)
            writer.close()
        role.process.stop.set()

    for role in (app._Leader, app._Follower):
        monkeypatch.setattr(role, "run", run)
    app.run(environment, {})
    app.run(replace(environment, local_rank=1), {})
    assert found == [True, False]


def test_work_that_ends_by_itself_is_a_failure(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: Any) -> None: ...

    for role in (app._Leader, app._Follower):
        monkeypatch.setattr(role, "run", run)
    with pytest.raises(RuntimeError, match=f"rank {environment.rank} ended without a signal"):
        app.run(environment, {})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_that_a_signal_ends_is_no_failure(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    async def run(role: Any, *_: Any) -> None:
        os.kill(os.getpid(), number)
        await role.process.stop.wait()

    for role in (app._Leader, app._Follower):
        monkeypatch.setattr(role, "run", run)
    app.run(environment, {})


def test_a_rank_is_ready_when_it_has_its_model(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{environment.pod.address}:{pod_contract.METRICS_PORT}/readyz"
    found: list[str] = []

    def probe() -> None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found.append(answer.read().decode())
        except urllib.error.HTTPError as error:
            found.append(f"{error.code} {error.read().decode()}")

    def start() -> TrainState:
        probe()
        return TrainState()

    async def run(role: Any, *_: Any) -> None:
        await asyncio.to_thread(probe)
        role.process.stop.set()

    slow = SimpleNamespace(start=start, close=lambda: None)
    monkeypatch.setattr(app, "_make_rank", lambda *_: slow)
    for role in (app._Leader, app._Follower):
        monkeypatch.setattr(role, "run", run)
    app.run(environment, {})
    assert found == ["503 starting", "ok"]


async def test_the_coordinator_goes_on_with_the_prompts_of_the_checkpoint(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: Any = object()

    class Opened(Exception):  # noqa: N818 - ends the rest of the trainer's life
        pass

    def prompts(*, state: object, **_: object) -> None:
        assert state is saved
        raise Opened

    async def no_engines(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(app, "PromptDispatcher", prompts)
    monkeypatch.setattr(app, "open_senders", no_engines)
    leader: Any = app._Leader(SimpleNamespace(environment=environment), SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(Opened):
        await leader._coordinate(TrainState(ledger=saved), SimpleNamespace(), None)


def test_the_first_rank_gives_recorded_responses(
    environment: TrainerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [sample_record(step=step).line() for step in (1, 2)]
    (environment.state_dir / "samples.jsonl").write_bytes(b"".join(lines))
    address = f"{environment.pod.address}:{pod_contract.METRICS_PORT}"
    found: list[bytes | int] = []

    def ask() -> None:
        for limit in (1, 0):
            url = f"http://{address}/samples?limit={limit}"
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    found.append(answer.read())
            except urllib.error.HTTPError as error:
                found.append(error.code)

    async def run(role: Any, *_: Any) -> None:
        await asyncio.to_thread(ask)
        role.process.stop.set()

    for role in (app._Leader, app._Follower):
        monkeypatch.setattr(role, "run", run)
    app.run(environment, {})
    assert found == ([lines[1], 400] if environment.rank == 0 else [404, 404])


def test_prompts_of_other_data_than_the_checkpoints_are_refused(tmp_path: Path) -> None:
    def rank(seed: int) -> TrainerRank:
        data = DataConfig((DataSource("builtin:reverse"),), seed=seed)
        checkpoint = CheckpointConfig(1, str(tmp_path / "saved"))
        return app._make_rank(
            TrainerEnvironment(
                job=job_config(data=data, checkpoint=checkpoint),
                pod=Pod("reverse-trainer-0", "uid", "127.0.0.1"),
                coordinator="127.0.0.1",
                token=lambda: "",
                trust=trust(),
                state_dir=tmp_path,
                rank=0,
            ),
            lambda _: None,
        )

    for seed, refused in ((1, ""), (2, "seed is 2, and was 1"), (1, "")):
        made = rank(seed)
        try:
            if refused:
                with pytest.raises(
                    SpecError, match=rf"^spec\.data: checkpoint .*: {refused}; give"
                ):
                    made.start()
            else:
                made.start()
                made.step = 1  # as if it had trained
                made.stop(TrainState())
        finally:
            made.close()
