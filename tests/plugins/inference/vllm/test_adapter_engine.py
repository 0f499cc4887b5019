"""Adapters on vLLM against recorded answers: which version a request names, and who unloads it.

`make test-vllm` runs the same engine with a real vLLM.
"""

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rollcall_plugins.inference.vllm import adapter_engine
from rollcall_plugins.inference.vllm.adapter_engine import RANKS
from rollcall_plugins.inference.vllm.engine import VllmEngine
from rollcall_protocol.adapter_config import AdapterConfig
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.models.adapter_files import WEIGHTS_FILE, adapter_shapes
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    InferenceEngine,
    PauseMode,
    WeightMismatchError,
)
from rollcall_runtime.worker.errors import SpecError
from tests.plugins.inference.vllm.stub_vllm import StubVllm, piece
from tests.process.engines.tiny_models import write_tiny_model
from tests.unit.rollcall_runtime.rollout.engine_driver import EngineDriver, respond

ADAPTER = AdapterConfig(rank=3, alpha=6.0, targets=("q_proj", "down_proj"))
REQUEST = GenerationRequest((5, 6), SamplingConfig(max_tokens=4), seed=7)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class Bench:
    """The engine, the stub that it calls, and an adapter that fits."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.stub = StubVllm(folder)
        path = str(write_tiny_model(folder / "model"))
        self.engine = VllmEngine.for_adapter(ADAPTER, model=path, config=config)
        self.command = self.engine._server.command  # type: ignore[attr-defined]
        self.engine._server = self.stub  # type: ignore[attr-defined]
        self.stub.pieces = [piece(1, finish="length")]
        self.driver = EngineDriver(self.engine)
        shapes = adapter_shapes(open_model(path).weights().shapes, ADAPTER)
        self.weights = {name: torch.full(shape, 0.5) for name, shape in shapes.items()}

    def update(self, version: int, **changes: Any) -> None:
        self.driver.run(self.updating(version, **changes))

    async def updating(
        self, version: int, running: PauseMode = PauseMode.KEEP, *, seconds: float = 5.0
    ) -> None:
        await self.engine.update_weights(
            self.weights.items(), version=version, running=running, seconds=seconds
        )

    def loaded(self) -> list[str]:
        """The adapters that vLLM has, in the order in which it loaded them."""
        return list(self.stub.adapters)

    async def begun(self) -> "asyncio.Task[Response]":
        """A request whose first piece has come, and whose others do not until vLLM is released."""
        self.stub.pieces = [piece(7)]
        self.stub.held.clear()
        running = asyncio.create_task(respond(self.engine, REQUEST))
        asked = len(self.stub.bodies)
        while len(self.stub.bodies) == asked:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        self.stub.pieces = [piece(8, 9), piece(3, finish="length")]
        return running


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.driver.close()


def test_vllm_loads_the_model_itself_with_room_for_the_rank(bench: Bench) -> None:
    assert "--enable-lora" in bench.command
    assert "--max-lora-rank=8" in bench.command
    assert not [one for one in bench.command if one.startswith("--load-format")]
    assert RANKS[-1] == 512


def test_a_trial_at_the_start_shows_what_vllm_cannot_serve(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "first")
    assert bench.stub.called[-2:] == [LOAD, UNLOAD]
    bench.driver.close()
    stub = StubVllm(tmp_path)
    stub.refused = {LOAD: "expected target modules in {'q_proj'}"}
    path = str(tmp_path / "first" / "model")
    engine = VllmEngine.for_adapter(ADAPTER, model=path, config={})
    engine._server = stub  # type: ignore[attr-defined]
    stub.pieces = [piece(1, finish="length")]
    with pytest.raises(SpecError, match=r"config\.loraTargets: vLLM cannot .* expected target"):
        EngineDriver(engine)


def test_layers_that_the_model_lacks_are_refused_before_the_start(tmp_path: Path) -> None:
    path = str(write_tiny_model(tmp_path / "model"))
    with pytest.raises(SpecError, match=r"config\.loraTargets: the model has no layer .* wqkv"):
        VllmEngine.for_adapter(AdapterConfig(3, 6.0, ("wqkv",)), model=path, config={})


def test_each_version_has_a_name_and_prefixes_of_its_own(bench: Bench) -> None:
    for version in (3, 4, 4):  # a restarted trainer gives numbers again
        bench.update(version)
        assert bench.driver.run(respond(bench.engine, REQUEST)).versions == (version,)
    asked = bench.stub.bodies[-3:]
    assert len({body["model"] for body in asked}) == 3
    assert len({body["cache_salt"] for body in asked}) == 3
    assert bench.loaded() == [asked[-1]["model"]]


def test_vllm_gets_the_tensors_as_they_came(bench: Bench) -> None:
    bench.driver.run(bench.engine.prepare(bench.weights.items(), version=3))
    (folder,) = bench.stub.adapters.values()
    found = load_file(Path(folder) / WEIGHTS_FILE)
    assert found.keys() == bench.weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in bench.weights.items())
    assert bench.engine.version is None, "until the update"
    with pytest.raises(RuntimeError, match="no weights have been loaded yet"):
        bench.driver.run(respond(bench.engine, REQUEST))
    bench.update(3)
    assert bench.stub.called.count(LOAD) == 2, "the trial, and once for the version"


def test_a_response_that_is_kept_goes_on_with_the_new_version(bench: Bench) -> None:
    bench.update(3)

    async def kept() -> Response:
        running = await bench.begun()
        await bench.updating(4)
        return await running

    response = bench.driver.run(kept())
    assert response.finished
    assert (response.tokens, response.versions) == ((7, 8, 9, 3), (3, 4, 4, 4))
    first, second = bench.stub.bodies[-2:]
    assert first["model"] != second["model"]
    assert first["cache_salt"] != second["cache_salt"]
    assert second["token_ids"] == [5, 6, 7]
    assert second["sampling_params"]["max_tokens"] == 3
    assert second["sampling_params"]["seed"] != first["sampling_params"]["seed"]


def test_a_response_that_is_aborted_ends_with_what_had_come(bench: Bench) -> None:
    bench.update(3)

    async def aborted() -> Response:
        running = await bench.begun()
        await bench.updating(4, PauseMode.ABORT)
        return await running

    response = bench.driver.run(aborted())
    assert (response.tokens, response.versions, response.finished) == ((7,), (3,), False)


def test_an_update_that_waits_holds_new_requests_until_the_old_ones_ended(bench: Bench) -> None:
    bench.update(3)

    async def waited() -> tuple[Response, Response]:
        running = await bench.begun()
        updating = asyncio.create_task(bench.updating(4, PauseMode.WAIT))
        while bench.engine._open.is_set():  # type: ignore[attr-defined]
            await asyncio.sleep(0.005)
        late = asyncio.create_task(respond(bench.engine, REQUEST))
        await asyncio.sleep(0.02)
        assert bench.engine.version == 3
        bench.stub.release(piece(2, finish="stop"))
        await updating
        return await running, await late

    old, late = bench.driver.run(waited())
    assert (old.tokens, old.versions, old.finished) == ((7, 2), (3, 3), True)
    assert set(late.versions) == {4}


def test_an_update_that_waits_too_long_leaves_the_old_version(bench: Bench) -> None:
    bench.update(3)

    async def late() -> Response:
        running = await bench.begun()
        with pytest.raises(TimeoutError, match=r"did not end within 0\.05 s"):
            await bench.updating(4, PauseMode.WAIT, seconds=0.05)
        bench.stub.release(piece(2, finish="stop"))
        return await running

    assert bench.driver.run(late()).versions == (3, 3)
    assert bench.driver.run(respond(bench.engine, REQUEST)).versions[0] == 3
    bench.update(4)
    assert bench.driver.run(respond(bench.engine, REQUEST)).versions[0] == 4


def test_a_version_is_unloaded_when_no_request_names_it(bench: Bench) -> None:
    bench.update(3)
    (old,) = bench.loaded()

    async def used() -> None:
        async def first_piece() -> None:
            async for _ in bench.engine.generate(REQUEST):
                held.set()
                await asyncio.sleep(30)  # slower than vLLM

        held = asyncio.Event()
        reading = asyncio.create_task(first_piece())
        await held.wait()
        await bench.updating(4)
        assert old in bench.loaded(), "a request still has it"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await asyncio.sleep(0.02)
        await bench.updating(5)

    bench.stub.pieces = [piece(7), piece(8, finish="stop")]
    bench.driver.run(used())
    assert len(bench.loaded()) == 1
    assert old not in bench.loaded()


def test_versions_that_were_prepared_in_vain_are_unloaded(bench: Bench) -> None:
    for version in (3, 4, 5):
        bench.driver.run(bench.engine.prepare(bench.weights.items(), version=version))
    assert len(bench.loaded()) == 1


def test_an_adapter_that_does_not_fit_is_not_shown_to_vllm(bench: Bench) -> None:
    called = list(bench.stub.called)
    wrong = dict(bench.weights)
    wrong.popitem()
    with pytest.raises(WeightMismatchError, match="missing base_model"):
        bench.driver.run(bench.engine.prepare(wrong.items(), version=3))
    assert bench.stub.called == called


def test_a_version_that_vllm_refuses_leaves_the_old_one(bench: Bench) -> None:
    bench.update(3)
    before = bench.loaded()
    bench.stub.refused = {LOAD: "no memory"}
    with pytest.raises(RuntimeError, match="no memory"):
        bench.update(4)
    assert (bench.engine.version, bench.engine.failure) == (3, "")
    assert bench.loaded() == before
    bench.stub.refused = {}
    bench.update(5)
    assert bench.engine.version == 5


def test_a_version_whose_files_have_no_room_leaves_the_old_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    bench.update(3)
    with monkeypatch.context() as patch:
        patch.setattr(adapter_engine, "write_adapter", full)
        with pytest.raises(RuntimeError, match=r"cannot be written: .* No space left"):
            bench.update(4)
    assert (bench.engine.version, bench.engine.failure) == (3, "")
    bench.update(4)
    assert bench.engine.version == 4


def test_where_some_ranks_may_have_loaded_it_vllm_is_out_of_service(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tensorParallelSize=2)
    bench.update(3)
    bench.stub.refused = {LOAD: "rank 1: no memory"}
    with pytest.raises(RuntimeError, match="rank 1: no memory"):
        bench.update(4)
    assert "rank 1: no memory" in bench.engine.failure
    with pytest.raises(RuntimeError, match="rank 1: no memory"):
        bench.driver.run(respond(bench.engine, REQUEST))
    bench.driver.close()


def test_a_version_that_vllm_does_not_unload_is_tried_again(bench: Bench) -> None:
    bench.update(3)
    bench.stub.refused = {UNLOAD: "busy"}
    bench.update(4)
    assert (bench.engine.version, len(bench.loaded())) == (4, 2)
    bench.stub.refused = {}
    bench.update(5)
    assert len(bench.loaded()) == 1


def test_an_engine_without_adapters_says_so() -> None:
    with pytest.raises(SpecError, match=r"engine\.name: .* does not serve adapters; name vllm"):
        InferenceEngine.for_adapter(ADAPTER, model="m", config={})
