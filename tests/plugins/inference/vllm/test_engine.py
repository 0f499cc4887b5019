"""The engine `vllm` against recorded answers: all or nothing, and what a stream says.

`make test-vllm` runs the same engine with a real vLLM.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollcall_plugins.inference.vllm.engine import VllmEngine
from rollcall_plugins.inference.vllm.in_server import BACKEND
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.tokenizer import open_tokenizer
from rollcall_runtime.rollout.engines.server.client import InferenceServerError
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    InferenceEngine,
    NewTokens,
    PauseMode,
    WeightMismatchError,
)
from rollcall_runtime.worker.errors import SpecError
from tests.plugins.inference.vllm.stub_vllm import StubVllm, piece
from tests.process.engines.tiny_models import write_tiny_model
from tests.unit.rollcall_runtime.rollout.engine_driver import EngineDriver, respond

REQUEST = GenerationRequest((5, 6), SamplingConfig(max_tokens=4, stop=("x",)), seed=7)
UPDATE = [
    "/start_weight_update",
    "/update_weights prepare",
    "/update_weights wait",
    "/pause",
    "/finish_weight_update",
    "/resume",
]


class Bench:
    """The engine, the stub that it calls, and weights that fit."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.stub = StubVllm(folder)
        path = str(write_tiny_model(folder / "model"))
        self.engine = VllmEngine(model=path, config=config)
        self.engine._server = self.stub  # type: ignore[assignment]
        self.stub.pieces = [piece(1, finish="length")]
        self.driver = EngineDriver(self.engine)
        shapes = open_model(path).weights().shapes
        self.weights = {name: torch.zeros(shape) for name, shape in shapes.items()}

    def update(self, version: int, **changes: Any) -> None:
        values: dict[str, Any] = {"running": PauseMode.KEEP, "seconds": 5.0}
        self.driver.run(
            self.engine.update_weights(self.weights.items(), version=version, **(values | changes))
        )

    def pieces(self, request: GenerationRequest = REQUEST) -> list[NewTokens]:
        async def every() -> list[NewTokens]:
            return [piece async for piece in self.engine.generate(request)]

        return self.driver.run(every())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.driver.close()


def test_an_update_prepares_before_it_pauses(bench: Bench) -> None:
    bench.update(3)
    assert bench.stub.called == UPDATE
    assert bench.engine.version == 3
    bench.driver.run(bench.engine.prepare(bench.weights.items(), version=4))
    assert bench.engine.version == 3, "until the update"
    bench.update(4)
    assert bench.stub.called == UPDATE * 2, "and it is prepared once"


def test_a_request_says_what_it_wants_in_vllms_words(bench: Bench) -> None:
    bench.update(3)
    begun = Response((8,), (-1.0,), (2,))
    bench.pieces(GenerationRequest((5, 6), REQUEST.sampling, seed=7, begun=begun))
    body = bench.stub.bodies[-1]
    assert body["token_ids"] == [5, 6, 8]
    sampling = body["sampling_params"]
    assert (sampling["max_tokens"], sampling["stop"], sampling["detokenize"]) == (3, ["x"], True)
    assert sampling["logprobs"] == 0
    assert sampling["seed"] != 7, "it would repeat its random numbers"


def test_a_schema_is_vllms_structured_output(bench: Bench) -> None:
    bench.update(3)
    bench.pieces(replace(REQUEST, json_schema='{"type": "object"}'))
    own = bench.stub.bodies[-1]["sampling_params"]["structured_outputs"]
    assert own == {"json": '{"type": "object"}'}
    bench.pieces()
    assert "structured_outputs" not in bench.stub.bodies[-1]["sampling_params"]
    begun = Response((8,), (-1.0,), (2,))
    with pytest.raises(RuntimeError, match="cannot continue an answer"):
        bench.pieces(replace(REQUEST, json_schema="{}", begun=begun))


def test_the_likeliest_tokens_are_there_though_vllm_names_the_sampled_one_first(
    bench: Bench,
) -> None:
    bench.update(3)
    named = [{"token_id": token, "logprob": value} for token, value in [(1, -9.0), (4, -0.1)]]
    named += [{"token_id": 5, "logprob": -2.0}, {"token_id": 6, "logprob": -9999.0}]
    one = piece(1, finish="length")
    one["logprobs"]["content"][0]["top_logprobs"] = named
    bench.stub.pieces = [one]
    (found,) = bench.pieces(replace(REQUEST, top_logprobs=2))
    assert found.top == (((4, -0.1), (5, -2.0)),)
    assert bench.stub.bodies[-1]["sampling_params"]["logprobs"] == 3
    (found,) = bench.pieces(replace(REQUEST, top_logprobs=20))
    assert found.top == (((4, -0.1), (5, -2.0), (1, -9.0)),), "none that cannot be sampled"
    assert bench.stub.bodies[-1]["sampling_params"]["logprobs"] == 21
    command = VllmEngine(model=str(bench.folder / "model"))._server.command
    assert "--max-logprobs=21" in command
    (found,) = bench.pieces()
    assert found.top == ()


def test_what_older_weights_left_in_the_prefix_cache_is_not_found(bench: Bench) -> None:
    for version in (3, 4, 4):  # a restarted trainer gives numbers again
        bench.update(version)
        bench.pieces()
        bench.pieces()
    salts = [body["cache_salt"] for body in bench.stub.bodies if "cache_salt" in body]
    assert salts[::2] == salts[1::2]
    assert len(set(salts)) == 3


def test_a_whole_response_is_not_asked_for_again(bench: Bench) -> None:
    bench.update(3)
    asked = len(bench.stub.bodies)
    begun = Response((8,) * 4, (-1.0,) * 4, (2,) * 4)
    whole = GenerationRequest((5, 6), REQUEST.sampling, seed=7, begun=begun)
    assert bench.pieces(whole) == [NewTokens((), (), (), finished=True)]
    assert len(bench.stub.bodies) == asked


def test_a_stop_string_that_another_rollout_began_ends_the_response(bench: Bench) -> None:
    bench.update(3)
    tokenizer = open_tokenizer(open_model(str(bench.folder / "model")))
    first, *rest = tokenizer.encode("xyz")
    bench.stub.pieces = [piece(*rest), piece(1, finish="length")]
    begun = Response((first,), (-1.0,), (2,))
    sampling = SamplingConfig(max_tokens=9, stop=("xyz",))
    (only,) = bench.pieces(replace(REQUEST, sampling=sampling, begun=begun))
    assert (only.tokens, only.finished) == (tuple(rest), True)


def test_vllms_own_versions_count_in_the_end(bench: Bench) -> None:
    bench.update(3)
    spans = [{"version": "2", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 3}]
    bench.stub.pieces = [piece(7, 8), piece(9, finish="stop", weight_versions=spans)]
    first, last = bench.pieces()
    assert first == NewTokens((7, 8), (-1.0, -1.0), (3, 3))
    assert (last.finished, last.all_versions) == (True, (2, 3, 3))


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([piece(7)], "ended before its response"),
        ([piece(7, logprob=-9999.0, finish="stop")], "are the weights finite"),
        (
            [piece(7, finish="stop", weight_versions=[{"version": "2", "start": 0, "end": 4}])],
            "the versions of 4 of 1 tokens",
        ),
    ],
)
def test_a_stream_that_cannot_be_right_is_an_error(
    bench: Bench, pieces: list[Any], problem: str
) -> None:
    bench.update(3)
    bench.stub.pieces = pieces
    with pytest.raises(InferenceServerError, match=problem):
        bench.pieces()


def test_an_aborted_response_is_not_finished(bench: Bench) -> None:
    bench.update(3)
    bench.stub.pieces = [piece(7), piece(8, finish="abort")]
    response = bench.driver.run(respond(bench.engine, REQUEST))
    assert (response.tokens, response.finished) == ((7, 8), False)


def test_weights_that_do_not_fit_are_not_shown_to_vllm(bench: Bench) -> None:
    name, tensor = next(iter(bench.weights.items()))
    wrong: dict[str, Tensor] = {**bench.weights, name: tensor[:1], "extra": tensor}
    with pytest.raises(WeightMismatchError, match=f"{name} has shape .*; unknown extra"):
        bench.driver.run(bench.engine.prepare(wrong.items(), version=3))
    integers = {**bench.weights, name: tensor.to(torch.int64)}
    with pytest.raises(WeightMismatchError, match=f"^{name} has the dtype int64"):
        bench.driver.run(bench.engine.prepare(integers.items(), version=3))
    assert bench.stub.called == []


def test_weights_that_a_worker_cannot_load_leave_the_version_served(bench: Bench) -> None:
    bench.update(3)
    bench.stub.report = "KeyError: 'head'"
    with pytest.raises(RuntimeError, match="rank 0: KeyError: 'head'"):
        bench.update(4)
    assert (bench.engine.version, bench.engine.failure) == (3, "")
    bench.stub.report, bench.stub.called = "", []
    bench.update(5)
    assert bench.stub.called == UPDATE[1:], "in the update that its workers have begun"


def test_an_update_that_finds_no_memory_names_the_setting(bench: Bench) -> None:
    bench.stub.report = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    with pytest.raises(RuntimeError, match=r"GiB of the card .*: lower gpuMemoryUtilization"):
        bench.update(3)


def test_a_pause_that_takes_too_long_is_taken_back(bench: Bench) -> None:
    bench.update(3)
    bench.stub.slow = {"/pause"}
    with pytest.raises(TimeoutError, match=r"vLLM did not pause within 0\.2 s"):
        bench.update(4, running=PauseMode.WAIT, seconds=0.2)
    assert bench.stub.called[-2:] == ["/pause", "/resume"]
    assert (bench.engine.version, bench.engine.failure) == (3, "")


@pytest.mark.parametrize("route", ["/finish_weight_update", "/resume"])
def test_an_update_that_may_be_half_made_takes_vllm_out_of_service(
    bench: Bench, route: str
) -> None:
    bench.update(3)
    bench.stub.refused = {route: "rank 1 failed"}
    with pytest.raises(RuntimeError, match="rank 1 failed"):
        bench.update(4)
    assert "rank 1 failed" in bench.engine.failure
    with pytest.raises(RuntimeError, match="rank 1 failed"):
        bench.pieces()
    if route == "/finish_weight_update":
        assert bench.stub.called[-1] == route, "it is not resumed"


def test_a_call_that_fails_on_a_rank_takes_vllm_out_of_service(bench: Bench) -> None:
    bench.stub.refused = {"/start_weight_update": "no engine"}
    with pytest.raises(RuntimeError, match="no engine"):
        bench.update(3)
    assert "no engine" in bench.engine.failure


def test_it_serves_nothing_before_the_first_weights(bench: Bench) -> None:
    assert bench.engine.version is None
    with pytest.raises(RuntimeError, match="no weights"):
        bench.pieces()


def test_it_serves_no_builtin_model() -> None:
    with pytest.raises(SpecError, match="vllm does not serve the model 'builtin:reverse-tiny'"):
        VllmEngine(model="builtin:reverse-tiny")


def test_vllm_is_started_as_the_pool_says(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    config = {"dtype": "float32", "arguments": "--max-num-seqs=8", "tensorParallelSize": 2}
    engine: InferenceEngine = VllmEngine(model=model, config=config)
    assert isinstance(engine, VllmEngine)
    command = engine._server.command
    assert {"--dtype=float32", "--max-num-seqs=8", "--tensor-parallel-size=2"} <= set(command)
    assert "--skip-tokenizer-init" not in command, "the model has one"
    assert f"--model={model}" in command
    assert not any("--host" in argument or "--port" in argument for argument in command)
    assert BACKEND in " ".join(command)


def test_of_vllms_metrics_those_of_its_process_are_left_out(bench: Bench) -> None:
    lines = bench.driver.run(bench.engine.metrics()).decode().splitlines()
    assert [line.split("{")[0].split(" Number")[0] for line in lines] == [
        "# HELP vllm:num_requests_running",
        "# TYPE vllm:num_requests_running gauge",
        "vllm:num_requests_running",
    ]


@pytest.mark.parametrize("recompute", [False, True])
def test_the_caches_are_emptied_at_an_update_where_that_is_asked_for(
    tmp_path: Path, *, recompute: bool
) -> None:
    bench = Bench(tmp_path, recomputeCache=recompute)
    bench.update(3)
    bench.driver.close()
    assert bench.stub.queries["/pause"] == {"mode": "keep", "clear_cache": str(recompute).lower()}


def test_no_more_tokens_are_asked_of_it_than_fit_behind_the_prompt(tmp_path: Path) -> None:
    engine = VllmEngine(model=str(write_tiny_model(tmp_path / "model")), config={"maxModelLen": 10})
    begun = Response((5,), (-1.0,), (0,))
    request = GenerationRequest((5,) * 7, SamplingConfig(max_tokens=64), seed=1, begun=begun)
    assert engine._sampling(request)[1] == 2, "three in all, of which one is there"
    with pytest.raises(ValueError, match="the prompt has 10 tokens, and this engine takes 10"):
        engine._sampling(replace(request, prompt=(5,) * 10))


def test_it_does_not_take_more_tokens_than_the_model_has_positions(tmp_path: Path) -> None:
    path = str(write_tiny_model(tmp_path / "model"))
    problem = r"^spec.rollouts\[\].engine.config.maxModelLen: 257 is above the model's 256"
    with pytest.raises(SpecError, match=problem):
        VllmEngine(model=path, config={"maxModelLen": 257})


def test_it_is_asked_to_stop_at_the_end_tokens_of_model_and_tokenizer(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "model")
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token": "<|im_start|>"}))
    engine = VllmEngine(model=str(directory))
    request = GenerationRequest((5,), SamplingConfig(stop_token_ids=(9,)), seed=1)
    assert engine._sampling(request)[0]["stop_token_ids"] == [1, 2, 9]
