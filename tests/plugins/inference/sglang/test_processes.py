"""The engine `sglang` with a stand-in for SGLang's server, as a process on a port.

The stand-in refuses what SGLang's recorded contract does not have. A token of it has the
log-probability -x where x is the number that all weights had which sampled it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rollcall_plugins.inference.sglang import engine as sglang_engine
from rollcall_plugins.inference.sglang import staged_weights
from rollcall_plugins.inference.sglang.engine import SglangEngine
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.engines.server.client import InferenceServerError
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    PauseMode,
    WeightMismatchError,
)
from tests.process.engines.tiny_models import write_tiny_model
from tests.unit.rollcall_runtime.rollout.engine_driver import EngineDriver, joined, respond

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from torch import Tensor

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
PROMPT = (5, 6, 7, 8, 9)  # the stand-in goes on with 5, 6, 7 and so on
LONG = GenerationRequest(PROMPT, SamplingConfig(max_tokens=50), seed=1)
SHORT = GenerationRequest(PROMPT, SamplingConfig(max_tokens=4), seed=2)
SECONDS = 10.0


class Served:
    """The engine on a stand-in whose faults a test sets."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self._faults = Path(os.environ["ROLLCALL_SGLANG_FAULTS"])
        self.fault()
        path = str(write_tiny_model(folder / "model"))
        settings = {"startSeconds": 20, "silentSeconds": 3, **config}
        self.engine = SglangEngine(model=path, config=settings)
        self.driver = EngineDriver(self.engine)
        self.shapes = open_model(path).weights().shapes
        self.run = self.driver.run

    def fault(self, **faults: str) -> None:
        """Routes without their slash, and what is wrong there from now on."""
        left = self._faults.with_suffix(".new")
        left.write_text(json.dumps({f"/{route}": fault for route, fault in faults.items()}))
        left.rename(self._faults)

    def weights(self, version: int) -> dict[str, Tensor]:
        return {name: torch.full(shape, float(version)) for name, shape in self.shapes.items()}

    async def update(self, version: int, running: PauseMode = PauseMode.KEEP, **more: Any) -> None:
        await self.engine.update_weights(
            self.weights(version).items(),
            version=version,
            running=running,
            **({"seconds": SECONDS} | more),
        )

    def respond(self, request: GenerationRequest = SHORT) -> Response:
        return self.run(respond(self.engine, request))

    def serves(self, version: int) -> bool:
        response = self.respond()
        right = response.logprobs == (-float(version),) * 4
        return right and response.versions == (version,) * 4 and self.engine.version == version

    async def running(self) -> float:
        """How many requests the stand-in works on."""
        text = (await self.engine.metrics()).decode()
        lines = [line for line in text.splitlines() if line.startswith("sglang:num_running_reqs")]
        return float(lines[0].rsplit(" ", 1)[1])

    def processes(self) -> list[int]:
        assert self.engine._server._process is not None
        return _processes(self.engine._server._process.pid)


def _processes(group: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
        except ProcessLookupError:
            continue
    return found


async def over(
    update: Coroutine[None, None, None], request: GenerationRequest, engine: SglangEngine
) -> Response:
    """The response to `request`, in the midst of which the update is made."""
    running = await begun(engine, request)
    await update
    return await running


async def begun(engine: SglangEngine, request: GenerationRequest) -> asyncio.Task[Response]:
    """The response to `request`, of which the first tokens have come."""
    first = asyncio.Event()

    async def response() -> Response:
        pieces = []
        try:
            async for piece in engine.generate(request):
                pieces.append(piece)
                first.set()
        finally:
            first.set()
        return joined(request.begun, pieces)

    running = asyncio.create_task(response())
    await first.wait()
    return running


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The stand-in is what `python -m sglang.launch_server` finds."""
    folder = tmp_path_factory.mktemp("environment")
    package = folder / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    double = "tests.plugins.inference.sglang.double.server"
    text = f"import sys\nfrom {double} import main\nmain(sys.argv[1:])\n"
    (package / "launch_server.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
        patch.setenv("ROLLCALL_SGLANG_FAULTS", str(folder / "faults.json"))
        yield


@pytest.fixture(scope="module")
def started(environment: None) -> Iterator[list[Served]]:
    """The last one may be in service yet."""
    every: list[Served] = []
    yield every
    for served in every:
        served.driver.close()


@pytest.fixture
def served(started: list[Served], tmp_path: Path) -> Served:
    """One that serves version 1."""
    if not started or started[-1].engine.failure:
        started.append(Served(tmp_path))
    started[-1].fault()
    started[-1].run(started[-1].update(1))
    return started[-1]


def test_a_response_has_the_log_probabilities_and_the_version_of_what_sampled_it(
    served: Served,
) -> None:
    assert served.respond() == Response((5, 6, 7, 8), (-1.0,) * 4, (1,) * 4, finished=True)
    served.run(served.update(2))
    assert served.serves(2)


def test_a_response_ends_at_a_stop_token_a_stop_string_or_the_models_own_end(
    served: Served,
) -> None:
    def tokens(**sampling: Any) -> tuple[int, ...]:
        config = SamplingConfig(max_tokens=100, **sampling)
        response = served.respond(GenerationRequest(PROMPT, config, seed=1))
        assert response.finished
        return response.tokens

    assert tokens(stop_token_ids=(8,)) == (5, 6, 7, 8)
    assert tokens(stop=("h",)) == (5, 6, 7)
    assert tokens()[-1] == 2


def test_a_response_goes_on_where_it_was_cut(served: Served) -> None:
    begun = Response((5, 6), (-1.0, -1.0), (1, 1))
    again = GenerationRequest(PROMPT, SHORT.sampling, seed=2, begun=begun)
    assert served.respond(again) == served.respond(SHORT)


@pytest.mark.parametrize(
    ("prompt", "sampling", "problem"),
    [
        ((), SHORT.sampling, "the prompt is empty"),
        ((10**6,), SHORT.sampling, "the token 1000000, outside the vocabulary"),
        ((1,) * 300, SHORT.sampling, "this engine takes 256 of prompt and response"),
        (PROMPT, SamplingConfig(max_tokens=4, top_p=0.9), "topP: must be 1 with sglang"),
        (PROMPT, SamplingConfig(max_tokens=4, top_k=9), "topK: must be 0 with sglang"),
    ],
)
def test_what_sglang_cannot_serve_is_not_sent_to_it(
    served: Served, prompt: tuple[int, ...], sampling: SamplingConfig, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        served.respond(GenerationRequest(prompt, sampling, seed=1))


@pytest.mark.parametrize("fault", ["", "keeps lost requests"])
def test_a_client_that_goes_away_ends_its_request(served: Served, fault: str) -> None:
    served.fault(generate=fault)

    async def gone() -> None:
        async with aclosing(served.engine.generate(LONG)) as pieces:
            await anext(pieces)
            assert await served.running() == 1
        deadline = time.monotonic() + 0.2  # before its 50 tokens would have come
        while await served.running() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert await served.running() == 0

    served.run(gone())


def test_an_update_that_keeps_responses_says_of_each_token_which_weights_sampled_it(
    served: Served,
) -> None:
    async def updates() -> None:
        for version in (2, 3):
            await served.update(version)
            await asyncio.sleep(0.05)

    for _ in range(3):
        served.run(served.update(1))
        response = served.run(over(updates(), LONG, served.engine))
        assert (len(response.tokens), response.finished) == (50, True)
        assert response.logprobs == tuple(-float(version) for version in response.versions)
        assert set(response.versions) == {1, 2, 3}


def test_an_update_that_waits_lets_responses_end_and_holds_new_ones_back(served: Served) -> None:
    async def waited() -> tuple[Response, Response]:
        first = await begun(served.engine, LONG)
        updating = asyncio.create_task(served.update(2, PauseMode.WAIT))
        while served.engine._requests._admitted.is_set():
            await asyncio.sleep(0.005)
        second = asyncio.create_task(respond(served.engine, SHORT))
        await updating
        return await first, await second

    first, second = served.run(waited())
    assert (set(first.versions), first.finished, len(first.tokens)) == ({1}, True, 50)
    assert set(second.versions) == {2}


def test_an_update_that_waits_too_long_leaves_the_former_version(served: Served) -> None:
    async def late() -> None:
        with pytest.raises(TimeoutError, match=r"1 responses still run after 0\.05 s"):
            await served.update(2, PauseMode.WAIT, seconds=0.05)

    response = served.run(over(late(), LONG, served.engine))
    assert set(response.versions) == {1}
    assert served.serves(1)
    served.run(served.update(2))
    assert served.serves(2), "and the next update is made"


def test_an_update_that_aborts_ends_responses_unfinished_and_they_go_on(served: Served) -> None:
    cut = served.run(over(served.update(2, PauseMode.ABORT), LONG, served.engine))
    assert not cut.finished
    assert 0 < len(cut.tokens) < 50
    assert cut.logprobs == (-1.0,) * len(cut.tokens)
    assert set(cut.versions) == {1}
    whole = served.respond(GenerationRequest(PROMPT, LONG.sampling, seed=1, begun=cut))
    assert set(whole.versions[len(cut.tokens) :]) == {2}
    assert (len(whole.tokens), whole.finished) == (50, True)


@pytest.mark.parametrize(
    ("fault", "error"),
    [("refuse", InferenceServerError), ("hang", TimeoutError)],
)
def test_a_pause_that_fails_is_taken_back(
    served: Served, fault: str, error: type[Exception]
) -> None:
    served.fault(pause_generation=fault)
    with pytest.raises(error):
        served.run(served.update(2, seconds=0.3))
    assert served.engine.failure == ""
    assert served.serves(1)


def test_a_pause_that_never_ends_is_given_up_with_sglang(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_engine, "CALL_SECONDS", 0.3)
    served.fault(pause_generation="never paused")
    with pytest.raises(RuntimeError, match="could not resume after a pause"):
        served.run(served.update(2, PauseMode.ABORT, seconds=0.3))
    assert "could not resume" in served.engine.failure


@pytest.mark.parametrize(
    ("route", "fault", "problem"),
    [
        ("update_weights_from_disk", "refuse", "could not load version 2: .*it is refused"),
        ("update_weights_from_disk", "no object", "could not load version 2: .*no object"),
        ("update_weights_from_disk", "hang", "could not load version 2: no answer"),
        ("update_weights_from_disk", "die", "could not load version 2|ended with signal SIGKILL"),
        ("model_info", "refuse", "it is refused"),
        ("model_info", "another version", "it says that it serves .*'6'"),
        ("continue_generation", "refuse", "could not resume after a pause: .*it is refused"),
    ],
)
def test_an_update_that_fails_once_it_has_begun_takes_sglang_out_of_service(
    served: Served, route: str, fault: str, problem: str
) -> None:
    served.fault(**{route: fault})

    async def failing() -> None:
        running = await begun(served.engine, LONG)
        with pytest.raises(RuntimeError, match=problem):
            await served.update(2)
        assert served.engine.failure
        with pytest.raises(RuntimeError):  # what was paused does not wait for ever
            await running

    served.run(failing())
    served.fault()
    with pytest.raises(RuntimeError, match="SGLang"):
        served.respond()
    with pytest.raises(RuntimeError, match="SGLang"):
        served.run(served.update(3))


def test_weights_that_sglang_cannot_load_are_not_served_in_part(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(descriptor: int, _: object) -> None:
        os.write(descriptor, b"x" * 100)

    monkeypatch.setattr(staged_weights, "_write", damaged)
    with pytest.raises(RuntimeError, match="Failed to update weights"):
        served.run(served.update(2))
    assert "Failed to update weights" in served.engine.failure


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state: state.pop("model.norm.weight"), "missing model.norm.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "unknown extra"),
        (lambda state: state.update({"model.norm.weight": torch.zeros(3)}), "has shape"),
    ],
)
def test_weights_that_do_not_fit_are_not_shown_to_sglang(
    served: Served, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    state: dict[str, Any] = served.weights(2)
    change(state)
    with pytest.raises(WeightMismatchError, match=problem):
        served.run(served.engine.prepare(state.items(), version=2))
    assert served.serves(1)


def test_weights_lie_in_memory_until_they_are_loaded(served: Served) -> None:
    served.run(served.engine.prepare(served.weights(2).items(), version=2))
    (link,) = served.engine._folder.glob("version-*/model.safetensors")
    assert link.is_file()
    assert str(link.readlink()).startswith(f"/proc/{os.getpid()}/fd/")
    assert served.serves(1), "until the update"
    served.run(served.update(2))
    assert list(served.engine._folder.glob("version-*")) == []
    assert served.serves(2)


def test_a_rank_that_keeps_the_former_weights_takes_sglang_out_of_service(
    tmp_path: Path, environment: None
) -> None:
    served = Served(tmp_path, tensorParallelSize=2)
    try:
        served.run(served.update(1))
        assert served.serves(1)
        served.fault(update_weights_from_disk="rank 1 keeps its weights")
        with pytest.raises(RuntimeError, match=r"the ranks \[1\] still have the former weights"):
            served.run(served.update(2))
        assert "former weights" in served.engine.failure
    finally:
        served.driver.close()


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("no logprob", "are the weights finite"),
        ("another token", "log-probabilities of other tokens"),
        ("outside the vocabulary", "outside the vocabulary"),
        ("no versions", "the versions of 0 of 4 tokens"),
        ("lost tokens", "3 tokens, of which 1 are named"),
        ("wrong shape", "not as its contract says"),
        ("too busy", "queue is full"),
        ("refuse", "it is refused"),
    ],
)
def test_a_stream_that_cannot_be_right_is_an_error(
    served: Served, fault: str, problem: str
) -> None:
    served.fault(generate=fault)
    with pytest.raises(InferenceServerError, match=problem):
        served.respond()
    served.fault()
    assert served.serves(1)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (signal.SIGKILL, "SGLang ended with signal SIGKILL"),
        (signal.SIGSTOP, "SGLang gave no answer for 1 s; it is killed"),
    ],
)
def test_a_server_that_dies_or_hangs_ends_its_requests_and_leaves_nothing_behind(
    tmp_path: Path, environment: None, fault: signal.Signals, failure: str
) -> None:
    served = Served(tmp_path, silentSeconds=1)
    served.run(served.update(1))

    async def faulty() -> None:
        running = await begun(served.engine, LONG)
        for pid in served.processes():
            os.kill(pid, fault)
        with pytest.raises(InferenceServerError, match="the stream"):
            await running
        deadline = time.monotonic() + SECONDS
        while not served.engine.failure and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert served.engine.failure == failure
        with pytest.raises(RuntimeError, match=failure):
            await respond(served.engine, SHORT)

    try:
        served.run(faulty())
    finally:
        served.driver.close()
    assert served.processes() == []
    assert not served.engine._folder.exists()


def test_an_argument_that_sglang_does_not_have_ends_the_start(
    tmp_path: Path, environment: None
) -> None:
    with pytest.raises(RuntimeError, match="SGLang ended with code 2; its own output says why"):
        Served(tmp_path, arguments="--no-such-flag")


def test_a_port_without_its_key_serves_no_other(served: Served) -> None:
    from rollcall_runtime.rollout.engines.server.client import ServerClient  # noqa: PLC0415

    port = next(a for a in served.engine._server.command if a.startswith("--port=")).split("=")[1]
    assert not any("api-key" in argument for argument in served.engine._server.command)

    async def outsider() -> None:
        client = ServerClient(port=int(port))
        try:
            with pytest.raises(InferenceServerError, match="Unauthorized"):
                await client.get("/server_info", seconds=5)
        finally:
            await client.close()

    served.run(outsider())
