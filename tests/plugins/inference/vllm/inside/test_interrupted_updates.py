"""A server that dies, hangs or runs out of memory in an update is out of service, or as before."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from hack.bench.vllm_updates import replay
from hack.bench.vllm_updates.fault_file import Fault, FaultFile
from hack.bench.vllm_updates.load import load
from hack.bench.vllm_updates.served_models import FAULT, SMALL, ModelSize, random_model, served
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.inference_engine import GenerationRequest
from tests.plugins.inference.vllm.inside.left_behind import shared_memory
from tests.plugins.inference.vllm.inside.served_engine import SHORT, Served, processes, requests
from tests.plugins.inference.vllm.inside.small_volume import filled, mounted
from tests.unit.rollcall_runtime.rollout import engine_driver
from tests.unit.rollcall_runtime.rollout.engine_driver import respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hack.bench.vllm_updates.served_models import Served as FaultyServed
    from rollcall_plugins.inference.vllm.engine import VllmEngine
    from rollcall_protocol.wire.partial_responses import Response

SILENT_SECONDS = 2.0
OUT_SECONDS = 15.0  # until a server that is gone or silent is known to be
# Its embedding has 49 MB: malloc keeps no freed memory of that size, so an update asks for more.
WIDE = ModelSize(hidden=256, layers=2, vocabulary=48_000)
SPARE_BYTES = 16 << 20

pytestmark = pytest.mark.timeout(400)


@asynccontextmanager
async def small_server(folder: Path) -> AsyncIterator[FaultyServed]:
    """It makes the faults that are planned in its folder."""
    with patch.dict(os.environ):
        models = [random_model(SMALL, seed=number, tied=True) for number in range(2)]
        async with served(folder, models, silent_seconds=SILENT_SECONDS) as found:
            yield found


async def answers(found: FaultyServed) -> list[Response]:
    """One after the other, so that only the weights decide each bit."""
    asked = [GenerationRequest((5, n, 7), SamplingConfig(max_tokens=12), seed=n) for n in range(3)]
    return [await found.respond(request) for request in asked]


async def failed(engine: VllmEngine) -> float:
    """Wait until it is out of service; the seconds."""
    began = time.monotonic()
    while not engine.failure:
        assert time.monotonic() - began < OUT_SECONDS, "it still counts as serving"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.parametrize("kind", ["kill", "stop"])
@pytest.mark.parametrize(("phase", "at"), [("load", 5), ("copy", 3)])
async def test_a_server_that_is_lost_in_an_update_serves_nothing_more(
    tmp_path: Path, phase: str, at: int, kind: str
) -> None:
    async with small_server(tmp_path / "first") as found:
        planned = FaultFile(tmp_path / "first" / FAULT)
        planned.plan(Fault(phase, at, kind))
        async with load(found, streams=2, tokens=100) as running:
            await asyncio.sleep(0.2)
            began = time.monotonic()
            with pytest.raises((RuntimeError, TimeoutError)):
                await found.update()
            await failed(found.engine)
            assert time.monotonic() - began < OUT_SECONDS
            await found.engine.close()  # as the agent does at a failure
        assert not planned.take_back(), "the fault was made"
        assert len(running.failures) == 2, "each running request ends with an error"
        for one in running.responses:
            assert set(one.response.versions) <= {found.version}
            assert (
                max(replay.differences(found, one.prompt, one.response), default=0.0) < replay.MIXED
            )
        with pytest.raises(RuntimeError):
            await answers(found)
        assert processes(found.engine) == []
        assert not found.engine._folder.exists()


def test_a_rank_that_is_killed_takes_the_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel does that where memory is short: it kills one process of several."""
    monkeypatch.setattr(engine_driver, "SECONDS", 300.0)
    served = Served(tmp_path / "model", tensor_parallel=2)
    served.engine._server._silent = SILENT_SECONDS
    shared: set[Path] = set()

    async def interrupted() -> None:
        shared.update(shared_memory(processes(served.engine)))
        reports = served.engine._folder / "prepared"
        shutil.rmtree(reports)  # the former update's
        updating = asyncio.create_task(served.updating())
        while not reports.exists():
            await asyncio.sleep(0.001)
        _, victim = named(served.engine, b"Worker")
        os.kill(victim, signal.SIGKILL)
        with pytest.raises((RuntimeError, TimeoutError)):
            await updating
        await failed(served.engine)
        with pytest.raises(RuntimeError):
            await respond(served.engine, requests(SHORT, count=1)[0])

    try:
        served.driver.run(interrupted())
    finally:
        served.driver.close()
    assert processes(served.engine) == []
    assert shared, "the ranks speak by it"
    assert not any(map(Path.exists, shared))


def named(engine: VllmEngine, name: bytes) -> list[int]:
    """Those of vLLM's processes that name themselves so."""
    return [
        pid
        for pid in processes(engine)
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"VLLM::" + name)
    ]


@contextmanager
def little_memory(engine: VllmEngine) -> Iterator[None]:
    """The process with the weights may have a little more data than it has."""
    (pid,) = named(engine, b"EngineCore")
    status = Path(f"/proc/{pid}/status").read_text()
    (own,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    before = resource.prlimit(pid, resource.RLIMIT_DATA)
    resource.prlimit(pid, resource.RLIMIT_DATA, ((own << 10) + SPARE_BYTES, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_DATA, before)


async def test_without_memory_for_an_update_the_former_weights_are_served(tmp_path: Path) -> None:
    models = [random_model(WIDE, seed=number, tied=True) for number in range(2)]
    with patch.dict(os.environ):
        async with served(tmp_path / "wide", models) as found:
            before = await answers(found)
            for _ in range(3):
                with little_memory(found.engine), pytest.raises(RuntimeError, match="memory"):
                    await found.update()
                assert not found.engine.failure
                assert await answers(found) == before
            following = found.version + 1
            await found.engine.prepare(found.weights(following), version=following)
            with little_memory(found.engine):
                await found.commit()  # which needs none
                after = await answers(found)
            assert {v for response in after for v in response.versions} == {following}
            for number, response in enumerate(after):
                assert max(replay.differences(found, (5, number, 7), response)) < replay.MIXED


def test_on_a_full_disk_updates_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_driver, "SECONDS", 300.0)
    # The path is short, since sockets lie below it.
    with tempfile.TemporaryDirectory() as volume, mounted(Path(volume)):
        monkeypatch.setattr(tempfile, "tempdir", volume)
        served = Served(tmp_path / "model")
        try:
            with filled(Path(volume)):
                for _ in range(3):
                    served.update()
                    assert served.serves_its_version()
        finally:
            served.driver.close()
            monkeypatch.undo()
        assert list(Path(volume).iterdir()) == []
