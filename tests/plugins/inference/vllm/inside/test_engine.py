"""The engine `vllm` with a real server: requests, versions, updates under load, and its death."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rollcall_plugins.inference.vllm.in_server import staged_file
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.engines.server.client import InferenceServerError
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    PauseMode,
    WeightMismatchError,
)
from tests.plugins.inference.vllm.inside.served_engine import (
    LONG,
    PROMPTS,
    SHORT,
    Served,
    begun,
    gauge,
    logprobs,
    plain_logprobs,
    processes,
    requests,
)
from tests.unit.rollcall_runtime.rollout import engine_driver
from tests.unit.rollcall_runtime.rollout.engine_driver import respond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollcall_protocol.wire.partial_responses import Response


UPDATES = 10

pytestmark = pytest.mark.timeout(400)  # a server starts in minutes on a machine that is busy


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_driver, "SECONDS", 200.0)
        served = Served(tmp_path_factory.mktemp("model"))
        yield served
        served.driver.close()


def _damaged(descriptor: int, *_: object, **__: object) -> None:
    """In the place of `staged_file.write`."""
    os.write(descriptor, b"x" * 100)


def test_logprobs_are_those_of_the_model_at_the_temperature(served: Served) -> None:
    for request in requests(SHORT):
        response = served.driver.run(respond(served.engine, request))
        assert response.finished
        assert len(response.tokens) == 12
        assert response.logprobs == pytest.approx(logprobs(served, request, response), abs=1e-4)
    (hot,) = requests(SamplingConfig(max_tokens=12, temperature=2.0), count=1)
    response = served.driver.run(respond(served.engine, hot))
    assert response.logprobs != pytest.approx(logprobs(served, hot, response), abs=1e-2)


def test_after_an_update_the_new_weights_answer_also_where_a_prefix_was_cached(
    served: Served,
) -> None:
    assert served.serves_its_version()
    served.update()
    assert served.serves_its_version()
    served.models.reverse()
    assert not served.serves_its_version(), "the weights differ enough to tell"
    served.models.reverse()


def test_responses_go_on_over_updates_and_each_token_says_its_version(served: Served) -> None:
    async def under_load() -> list[Response]:
        await served.prepare()
        running = await begun(served.engine, requests(LONG))
        await served.serve_prepared()
        for _ in range(UPDATES - 1):
            await served.updating()
        return list(await asyncio.gather(*running))

    first = served.version
    responses = served.driver.run(under_load())
    assert served.version == first + UPDATES
    assert all(response.finished and len(response.tokens) == 200 for response in responses)
    assert any(len(set(response.versions)) > 1 for response in responses)
    for response in responses:
        assert list(response.versions) == sorted(response.versions)


@pytest.mark.parametrize("recompute", [False, True])
def test_keys_and_values_after_an_update_are_those_of_the_former_weights_or_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, recompute: bool
) -> None:
    monkeypatch.setattr(engine_driver, "SECONDS", 200.0)
    served = Served(tmp_path / "model", recomputeCache=recompute)

    async def updated() -> Response:
        await served.prepare()
        (running,) = await begun(served.engine, requests(LONG, count=1))
        await served.serve_prepared()
        return await running

    try:
        response = served.driver.run(updated())
        assert len(set(response.versions)) == 2
        new = served.version
        plain = plain_logprobs(served.model(new), PROMPTS[0], response)
        after = [
            abs(logprob - expected)
            for logprob, expected, version in zip(
                response.logprobs, plain, response.versions, strict=True
            )
            if version == new
        ]
        assert (max(after) < 1e-4) == recompute, max(after)
    finally:
        served.driver.close()


def test_an_update_that_aborts_ends_responses_unfinished_and_they_go_on(served: Served) -> None:
    async def aborted() -> tuple[Response, Response]:
        (request,) = requests(LONG, count=1)
        await served.prepare()
        (running,) = await begun(served.engine, [request])
        await served.serve_prepared(PauseMode.ABORT)
        cut = await running
        request = GenerationRequest(request.prompt, LONG, request.seed, begun=cut)
        return cut, await respond(served.engine, request)

    cut, whole = served.driver.run(aborted())
    assert not cut.finished
    assert 0 < len(cut.tokens) < 200
    assert set(cut.versions) == {served.version - 1}
    assert whole.finished
    assert whole.tokens[: len(cut.tokens)] == cut.tokens
    assert set(whole.versions[len(cut.tokens) :]) == {served.version}


def test_an_update_that_waits_lets_responses_end_first(served: Served) -> None:
    async def waited() -> list[Response]:
        await served.prepare()
        running = await begun(served.engine, requests(LONG))
        await served.serve_prepared(PauseMode.WAIT)
        return list(await asyncio.gather(*running))

    for response in served.driver.run(waited()):
        assert response.finished
        assert set(response.versions) == {served.version - 1}


def test_an_update_that_waits_too_long_leaves_the_old_version(served: Served) -> None:
    async def late() -> list[Response]:
        await served.prepare()
        running = await begun(served.engine, requests(LONG))
        with pytest.raises(TimeoutError, match="did not pause within"):
            await served.serve_prepared(PauseMode.WAIT, seconds=0.02)
        served.version -= 1
        return list(await asyncio.gather(*running))

    assert all(response.finished for response in served.driver.run(late()))
    assert served.serves_its_version()
    served.update()
    assert served.serves_its_version(), "and the next update is made"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state: state.pop("model.norm.weight"), "missing model.norm.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "unknown extra"),
        (
            lambda state: state.update({"model.norm.weight": torch.zeros(3)}),
            r"model.norm.weight has shape \(3,\), not \(128,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    served: Served, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    state = dict(served.model(served.version + 1).named_parameters())
    change(state)
    with pytest.raises(WeightMismatchError, match=problem):
        served.driver.run(served.engine.prepare(state.items(), version=99))
    assert served.serves_its_version()


def test_a_staged_file_that_vllm_refuses_changes_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(staged_file, "write", _damaged)
        with pytest.raises(RuntimeError, match="rank 0: StagedFileError"):
            served.driver.run(served.updating())
    assert served.serves_its_version()
    served.update()
    assert served.serves_its_version(), "and the next update is made"


def test_a_prompt_that_is_too_long_is_refused(served: Served) -> None:
    request = GenerationRequest((3,) * 300, SHORT, seed=1)
    with pytest.raises(ValueError, match="256"):
        served.driver.run(respond(served.engine, request))


def test_a_client_that_goes_away_ends_its_request(served: Served) -> None:
    async def gone() -> None:
        (request,) = requests(LONG, count=1)
        async with aclosing(served.engine.generate(request)) as pieces:
            await anext(pieces)
        deadline = time.monotonic() + 10
        while await gauge(served, "running") and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert await gauge(served, "running") == 0

    served.driver.run(gone())


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (signal.SIGKILL, "vLLM ended with signal SIGKILL"),
        (signal.SIGSTOP, "vLLM gave no answer for 2 s; it is killed"),
    ],
)
def test_a_server_that_dies_or_hangs_ends_its_requests_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: signal.Signals, failure: str
) -> None:
    monkeypatch.setattr(engine_driver, "SECONDS", 200.0)
    shared = set(Path("/dev/shm").iterdir())
    served = Served(tmp_path / "model")
    served.engine._server._silent = 2.0

    async def faulty() -> None:
        (first,) = await begun(served.engine, requests(LONG, count=1))
        for pid in processes(served.engine):
            os.kill(pid, fault)
        with pytest.raises(InferenceServerError, match="the stream"):
            await first
        deadline = time.monotonic() + 30
        while not served.engine.failure and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert served.engine.failure == failure
        with pytest.raises(RuntimeError, match=failure):
            await respond(served.engine, requests(SHORT, count=1)[0])

    try:
        served.driver.run(faulty())
    finally:
        served.driver.close()
    assert processes(served.engine) == []
    assert set(Path("/dev/shm").iterdir()) <= shared


def test_with_tensor_parallelism_all_ranks_change_or_none_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_driver, "SECONDS", 300.0)
    served = Served(tmp_path / "model", tensor_parallel=2)
    try:
        assert served.serves_its_version()
        served.update()
        assert served.serves_its_version()
        with monkeypatch.context() as patch:
            patch.setattr(staged_file, "write", _damaged)
            with pytest.raises(RuntimeError, match=r"rank 0: .*rank 1: "):
                served.update()
        assert served.serves_its_version()
        served.update()
        assert served.serves_its_version(), "and the next update is made"
    finally:
        served.driver.close()
