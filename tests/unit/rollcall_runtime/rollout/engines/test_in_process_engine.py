"""The engines in this process, beside what every engine promises (`test_conformance.py`)."""

import asyncio
import json
import shutil
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.engines import transformers_engine
from rollcall_runtime.rollout.engines.in_process_engine import InProcessEngine
from rollcall_runtime.rollout.engines.tiny_engine import TinyEngine
from rollcall_runtime.rollout.engines.transformers_engine import TransformersEngine
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    NewTokens,
    PauseMode,
)
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import (
    ARCHITECTURES,
    Architecture,
    write_model,
    write_tiny_model,
)
from tests.unit.rollcall_runtime.rollout.engine_driver import (
    SECONDS,
    EngineDriver,
    joined,
    requests_of,
    respond,
)
from tests.unit.rollcall_runtime.rollout.engines.served_engine import (
    PROMPTS,
    RAGGED,
    TINY,
    TRANSFORMERS,
    Served,
    recomputed,
    sample,
)

ENGINES = {"tiny": TinyEngine, "transformers": TransformersEngine}


def update_after(
    engine: EngineDriver, count: int, weights: dict[str, Tensor], *, running: PauseMode
) -> None:
    """Load `weights` as version 7 between decode steps `count` and `count + 1` from now."""
    thread = made_by(engine)._thread
    step, steps = thread._step, 0

    def counted(*arguments: Any) -> None:
        nonlocal steps
        step(*arguments)
        steps += 1
        if steps == count:
            update = engine.engine.update_weights(
                weights.items(), version=7, running=running, seconds=SECONDS
            )
            assert thread._loop is not None
            asyncio.run_coroutine_threadsafe(update, thread._loop)
            deadline = time.monotonic() + SECONDS
            while thread._update is None and time.monotonic() < deadline:
                time.sleep(0.001)

    thread._step = counted


def made_by(engine: EngineDriver) -> InProcessEngine:
    assert isinstance(engine.engine, InProcessEngine)
    return engine.engine


def test_new_weights_in_mid_generation_show_in_the_tokens_versions(
    served: Served, engine: EngineDriver
) -> None:
    update_after(engine, 2, served.state(9), running=PauseMode.KEEP)
    groups = sample(engine)
    longest = max((g for group in groups for g in group), key=lambda g: len(g.tokens))
    assert longest.versions == (0, 0, 7, 7, 7, 7)[: len(longest.tokens)]
    models = {0: served.policy(0), 7: served.policy(9)}
    for tokens, group in zip(PROMPTS, groups, strict=True):
        for generation in group:
            assert generation.finished
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED])
def test_what_an_abort_cut_short_is_continued_with_its_tokens(
    served: Served, engine: EngineDriver, prompts: list[tuple[int, ...]]
) -> None:
    update_after(engine, 2, served.state(9), running=PauseMode.ABORT)
    cut = sample(engine, prompts)
    assert {len(g.tokens) for group in cut for g in group} <= {1, 2}
    assert not all(g.finished for group in cut for g in group)
    whole = sample(engine, prompts, begun=cut)
    models = {0: served.policy(0), 7: served.policy(9)}
    for tokens, before, after in zip(prompts, cut, whole, strict=True):
        for begun, generation in zip(before, after, strict=True):
            assert generation.finished
            assert generation.tokens[: len(begun.tokens)] == begun.tokens
            if begun.finished:
                assert generation == begun
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_an_update_that_waits_comes_after_what_runs_and_before_what_waits(
    served: Served, engine: EngineDriver
) -> None:
    update_after(engine, 2, served.state(9), running=PauseMode.WAIT)
    assert {v for group in sample(engine) for g in group for v in g.versions} == {0}
    assert {v for group in sample(engine) for g in group for v in g.versions} == {7}


def test_an_update_that_waits_too_long_changes_nothing(
    served: Served, engine: EngineDriver
) -> None:
    thread, state = made_by(engine)._thread, served.state(9)
    step = thread._step

    def slow(*arguments: Any) -> None:
        time.sleep(0.05)
        step(*arguments)

    thread._step = slow

    async def both() -> None:
        running = [
            asyncio.create_task(respond(engine.engine, request))
            for group in requests_of(PROMPTS, group_size=2, seed=1)
            for request in group
        ]
        while not thread._running:
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError, match="requests did not end"):
            await engine.engine.update_weights(
                state.items(), version=7, running=PauseMode.WAIT, seconds=0.01
            )
        found = await asyncio.gather(*running)
        assert {version for response in found for version in response.versions} == {0}

    engine.run(both())
    assert made_by(engine).version == 0
    engine.load_weights(state.items(), version=8)
    assert made_by(engine).version == 8, "the next one is not kept out"


def test_what_a_response_is_depends_on_nothing_beside_it(engine: EngineDriver) -> None:
    """Its tokens, for the same seed: other prompts, and those that come later, change rounding."""
    (alone,) = requests_of(PROMPTS[:1], group_size=3, seed=1)
    groups = sample(engine)

    async def later() -> list[Response]:
        found = []
        for request in alone:
            found.append(asyncio.create_task(respond(engine.engine, request)))
            await asyncio.sleep(0.002)
        return list(await asyncio.gather(*found))

    assert [g.tokens for g in engine.run(later())] == [g.tokens for g in groups[0]]


def test_a_request_that_its_client_ends_is_sampled_no_further(engine: EngineDriver) -> None:
    thread = made_by(engine)._thread
    step = thread._step

    def slow(*arguments: Any) -> None:
        time.sleep(0.06)
        step(*arguments)

    thread._step = slow
    (request,) = requests_of(PROMPTS[:1], group_size=1, seed=1)[0]

    async def first() -> None:
        async with aclosing(engine.engine.generate(request)) as pieces:
            await anext(pieces)
        deadline = time.monotonic() + SECONDS
        while thread._running and time.monotonic() < deadline:
            await asyncio.sleep(0.001)

    engine.run(first())
    assert not thread._running


def test_tokens_are_streamed_as_they_are_sampled(engine: EngineDriver) -> None:
    thread = made_by(engine)._thread
    step = thread._step

    def slow(*arguments: Any) -> None:
        time.sleep(0.06)
        step(*arguments)

    (request,) = requests_of(PROMPTS[:1], group_size=1, seed=4)[0]
    whole = engine.run(respond(engine.engine, request))
    thread._step = slow

    async def pieces() -> list[Any]:
        return [piece async for piece in engine.engine.generate(request)]

    found = engine.run(pieces())
    assert len(found) == len(whole.tokens) > 1, "one at a time"
    assert joined(Response(), found) == whole


def test_a_model_that_fails_ends_its_requests_and_the_engine(engine: EngineDriver) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    made_by(engine)._thread._step = fails
    with pytest.raises(RuntimeError, match="decoding failed: RuntimeError: out of memory"):
        sample(engine)
    assert "out of memory" in made_by(engine).failure
    with pytest.raises(RuntimeError, match="out of memory"):
        sample(engine)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([()], "the prompt is empty"),
        ([PROMPTS[0], (0, 99, 1)], "the prompt has the token 99, outside the vocabulary of 1[36]"),
        (
            [(0, *[3] * 300, 1)],
            r"the prompt has 302 tokens, and this engine takes (13|256) of prompt and response",
        ),
    ],
)
def test_prompts_that_the_model_cannot_take_are_refused(
    engine: EngineDriver, prompts: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sample(engine, prompts)


@pytest.mark.parametrize("asked", [0, 6, 64])
def test_a_response_gets_the_room_that_its_prompt_leaves(tmp_path: Path, asked: int) -> None:
    served = Served(TINY, tmp_path)  # which has 13 positions
    served.engine.load_weights(served.state(0, spread=0.01).items(), version=0)
    prompt, sampling = (0, *[3] * 8, 1), [SamplingConfig(max_tokens=asked)]
    (group,) = served.engine.sample([prompt], group_size=32, seed=3, sampling=sampling)
    assert max(len(generation.tokens) for generation in group) == 3
    assert all(generation.finished for generation in group)
    served.engine.close()


def test_wrong_settings_name_their_field(served: Served) -> None:
    made = type(made_by(served.engine))
    with pytest.raises(SpecError, match=r"^spec.rollouts\[\].engine.config.maxToken: unknown"):
        made(model=served.path, config={"maxToken": 3})
    with pytest.raises(SpecError, match=r"config: maxTokens and threads must be at least 1"):
        made(model=served.path, config={"maxTokens": 0})


@pytest.mark.parametrize("wrong", ["tiny", "transformers"])
def test_an_engine_names_the_one_that_serves_another_kind_of_model(
    wrong: str, directory: Path
) -> None:
    path, right = (
        (str(directory), "transformers") if wrong == "tiny" else ("builtin:reverse-tiny", "tiny")
    )
    with pytest.raises(SpecError, match=r"^spec.rollouts\[\].engine.name: .*") as caught:
        ENGINES[wrong](model=path)
    assert caught.value.problem == f"{wrong} does not serve the model {path!r}; {right} does"


def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(directory: Path) -> None:
    served = Served(TRANSFORMERS, directory)
    served.engine.load_weights(served.state(0, spread=0.01).items(), version=0)
    text = made_by(served.engine)._text
    sampling = [SamplingConfig(stop=(text([4]),)), *[SamplingConfig()] * 3]
    groups = served.engine.sample(PROMPTS, group_size=32, seed=1, sampling=sampling)
    assert any(generation.tokens[-1] == 4 for generation in groups[0])
    assert not any(4 in generation.tokens[:-1] for generation in groups[0])
    assert any(4 in generation.tokens[:-1] for group in groups[1:] for generation in group)


def test_a_stop_string_needs_a_tokenizer(tmp_path: Path) -> None:
    served = Served(TINY, tmp_path)
    served.engine.load_weights(served.state(0).items(), version=0)
    with pytest.raises(SpecError, match="has no tokenizer"):
        served.engine.sample(
            PROMPTS[:1], group_size=1, seed=1, sampling=[SamplingConfig(stop=("x",))]
        )


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_of_hugging_face_is_sampled_from(
    tmp_path: Path, architecture: Architecture, tied: bool
) -> None:
    served = Served(TRANSFORMERS, write_tiny_model(tmp_path / "m", architecture, tied=tied))
    served.engine.load_weights(served.state(0).items(), version=0)
    models = {0: served.policy(0)}
    for tokens, group in zip(RAGGED, sample(served.engine, RAGGED), strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("architecture", ["granite", "gemma2"])
def test_what_an_architecture_computes_after_its_output_layer_is_in_the_samples(
    tmp_path: Path, architecture: str
) -> None:
    own = {"logits_scaling": 8.0} if architecture == "granite" else {"head_dim": 16}
    served = Served(TRANSFORMERS, write_model(tmp_path / "m", architecture, **own))
    served.engine.load_weights(served.state(0).items(), version=0)
    models = {0: served.policy(0)}
    for tokens, group in zip(RAGGED, sample(served.engine, RAGGED), strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


KEEP_A_STATE: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
}


@pytest.mark.skipif(transformers.__version__ < "5", reason="4.57 has other caches for them")
@pytest.mark.parametrize("architecture", KEEP_A_STATE)
def test_layers_that_keep_a_state_go_on_beside_responses_that_end(
    tmp_path: Path, architecture: str
) -> None:
    own = KEEP_A_STATE[architecture]
    served = Served(TRANSFORMERS, write_model(tmp_path / "m", architecture, **own))
    served.engine.load_weights(served.state(0).items(), version=0)
    models = {0: served.policy(0)}
    lengths = [SamplingConfig(max_tokens=count) for count in (1, 6, 2, 5)]
    groups = served.engine.sample(RAGGED, group_size=2, seed=1, sampling=lengths)
    assert {len(generation.tokens) for group in groups for generation in group} > {1, 2}
    for tokens, group in zip(RAGGED, groups, strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_model_that_cannot_go_on_beside_a_row_that_ends_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("the layer has no reorder_cache")

    monkeypatch.setattr(transformers_engine.CachedTransformer, "select", fail)
    with pytest.raises(SpecError, match="does not serve qwen3: the layer has no reorder_cache"):
        TransformersEngine(model=str(directory))


def test_a_model_without_a_cache_of_keys_and_values_is_refused(tmp_path: Path) -> None:
    """It would pass over the tokens before the last one."""
    path = str(write_model(tmp_path / "m", "mamba"))
    with pytest.raises(SpecError, match="transformers does not serve mamba: it has no cache of"):
        TransformersEngine(model=path)


def test_a_model_that_sees_padding_is_refused(tmp_path: Path) -> None:
    """Its rows would be sampled otherwise than the trainer computes them (0.7 nats here)."""
    path = str(write_model(tmp_path / "m", "recurrent_gemma", num_hidden_layers=3, head_dim=16))
    with pytest.raises(SpecError, match=r"name: transformers does not serve recurrent_gemma: of "):
        TransformersEngine(model=path)


def test_a_model_that_cannot_be_decoded_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("sizes differ")

    monkeypatch.setattr(transformers_engine.CachedTransformer, "logits", fail)
    with pytest.raises(SpecError, match="does not serve qwen3: sizes differ; vllm may serve it"):
        TransformersEngine(model=str(directory))


def test_a_model_of_hugging_face_is_put_on_the_workers_device(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TransformersEngine(model=str(directory)).device == "cpu"
    monkeypatch.setattr(transformers_engine, "worker_device", lambda: "meta")
    monkeypatch.setattr(transformers_engine, "hides_padding", lambda _: True)
    assert TransformersEngine(model=str(directory)).device == "meta"
    assert TinyEngine(model="builtin:reverse-tiny").device == "cpu"


def test_the_tokenizers_own_end_token_ends_a_response_too(directory: Path, tmp_path: Path) -> None:
    other = shutil.copytree(directory, tmp_path / "copy")
    file = other / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token": "<|im_start|>"}))
    served = Served(TRANSFORMERS, other)
    served.engine.load_weights(served.state(0, spread=0.01).items(), version=0)
    (group,) = served.engine.sample(PROMPTS[:1], group_size=32, seed=0)
    assert {g.tokens[-1] for g in group if len(g.tokens) < 6} == {1, 2}
    assert not any({1, 2} & set(generation.tokens[:-1]) for generation in group)


def test_every_end_token_of_the_generation_settings_ends_a_response(
    directory: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(directory, tmp_path / "copy")
    ends = list(range(2, 13))  # 2 is the tokenizer's own
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": ends[1:]}))
    served = Served(TRANSFORMERS, other)
    served.engine.load_weights(served.state(0, spread=0.01).items(), version=0)
    for generation in served.engine.sample(PROMPTS[:1], group_size=32, seed=0)[0]:
        assert not set(generation.tokens[:-1]) & set(ends)
        assert len(generation.tokens) == 6 or generation.tokens[-1] in ends


def test_likely_tokens_are_those_of_each_step(served: Served) -> None:
    """Also of a response that was begun, and beside one for which none are asked."""
    served.engine.load_weights(served.state(1).items(), version=1)
    sampling = SamplingConfig(max_tokens=6)
    begun = Response((3, 4), (-1.0, -1.0), (1, 1))
    first = GenerationRequest(PROMPTS[0], sampling, seed=3, begun=begun, top_logprobs=3)
    other = GenerationRequest(PROMPTS[1], sampling, seed=4)

    async def every(request: GenerationRequest) -> list[NewTokens]:
        return [piece async for piece in served.engine.engine.generate(request)]

    async def both() -> list[list[NewTokens]]:
        return list(await asyncio.gather(every(first), every(other)))

    found, without = served.engine.run(both())
    assert all(piece.top == () for piece in without)
    top = [pairs for piece in found for pairs in piece.top]
    tokens = [token for piece in found for token in piece.tokens]
    assert len(top) == len(tokens) > 0
    logits = served.policy(1)
    for at, pairs in enumerate(top):
        context = torch.tensor([[*PROMPTS[0], *begun.tokens, *tokens[:at]]])
        values, likely = logits(context)[0, -1].log_softmax(-1).topk(3)
        assert [token for token, _ in pairs] == likely.tolist()
        assert [value for _, value in pairs] == pytest.approx(values.tolist(), abs=1e-4)
