"""The engines in this process: each token's log-probability is that of the version it says."""

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.engines import transformers_engine
from rollcall_runtime.rollout.engines.in_process_engine import InProcessEngine
from rollcall_runtime.rollout.engines.tiny_engine import TinyEngine
from rollcall_runtime.rollout.engines.transformers_engine import TransformersEngine
from rollcall_runtime.rollout.inference_engine import (
    PartialOutputCallback,
    PauseMode,
    WeightMismatchError,
)
from rollcall_runtime.tasks.reverse import EOS, prompt
from rollcall_runtime.worker.errors import SpecError
from tests.engines.tiny_models import ARCHITECTURES, LETTERS, Architecture, write_tiny_model

PROMPTS = [prompt(index, seed=0) for index in range(4)]
RAGGED = [(0, 3, 1), (0, 3, 4, 5, 6, 7, 1), (5,), (0, 3, 4, 5, 1)]
ENGINES = {"tiny": TinyEngine, "transformers": TransformersEngine}

Policy = Callable[[Tensor], Tensor]  # tokens [rows, tokens] to logits


class Served:
    """An engine, the kind of model that it serves, and other weights for that."""

    def __init__(self, name: str, path: str) -> None:
        self.path = path
        self.engine = ENGINES[name](model=path, config={"maxTokens": 6})
        self._source = open_model(path)

    def state(self, seed: int, spread: float = 0.15) -> dict[str, Tensor]:
        """Weights far from uniform, so that a wrong weight or position would show."""
        generator = torch.Generator().manual_seed(seed)
        reader = self._source.weights()
        return {
            name: torch.randn(shape, generator=generator) * spread
            + (1.0 if "norm" in name else 0.0)
            for name, shape in reader.shapes.items()
        }

    def policy(self, seed: int) -> Policy:
        """The model with these weights, which computes all positions at once, without a cache."""
        model = self._source.build().requires_grad_(requires_grad=False)
        for name, parameter in model.named_parameters():
            parameter.copy_(self.state(seed)[name])

        def logits(tokens: Tensor) -> Tensor:
            output = model(tokens)
            found: Tensor = getattr(output, "logits", output)
            return found

        return logits


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Hugging Face's with the vocabulary of the task `reverse`."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "qwen3", characters=LETTERS)


@pytest.fixture(params=["tiny", "transformers"])
def served(request: pytest.FixtureRequest, directory: Path) -> Served:
    path = "builtin:reverse-tiny" if request.param == "tiny" else str(directory)
    served = Served(request.param, path)
    served.engine.load_weights(served.state(0).items(), version=0)
    return served


@pytest.fixture
def engine(served: Served) -> InProcessEngine:
    return served.engine


def sample(
    engine: InProcessEngine,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    seed: int = 1,
    partials: Sequence[Sequence[Response]] | None = None,
) -> list[list[Response]]:
    return engine.generate(prompts, group_size=3, seed=seed, timeout=10, partials=partials)


def after_steps(engine: InProcessEngine, count: int, action: Callable[[], None]) -> None:
    """Have `action` happen between decode steps `count` and `count + 1` of the next generation."""
    step, steps = engine._step, 0

    def counted(*arguments: object) -> bool:
        nonlocal steps
        permitted = step(*arguments)  # type: ignore[arg-type]
        steps += 1
        if steps == count:
            action()
        return permitted

    engine._step = counted  # type: ignore[method-assign,assignment]


def recomputed(
    prompt: Sequence[int], generation: Response, models: dict[int, Policy]
) -> list[float]:
    """The log-probabilities of a response, token by token, by the versions that it says."""
    tokens = [*prompt, *generation.tokens]
    logprobs = {
        version: model(torch.tensor([tokens[:-1]])).log_softmax(-1)[0]
        for version, model in models.items()
    }
    return [
        float(logprobs[version][len(prompt) - 1 + at, token])
        for at, (token, version) in enumerate(
            zip(generation.tokens, generation.versions, strict=True)
        )
    ]


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED])
def test_logprobs_are_those_of_the_model(
    served: Served, engine: InProcessEngine, prompts: list[tuple[int, ...]]
) -> None:
    models = {0: served.policy(0)}
    for tokens, group in zip(prompts, sample(engine, prompts), strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_response_ends_with_eos_or_at_its_bound(served: Served, engine: InProcessEngine) -> None:
    nearly_uniform = served.state(0, spread=0.01)
    engine.load_weights(nearly_uniform.items(), version=0)
    lengths = set()
    for group in engine.generate(PROMPTS, group_size=32, seed=3, timeout=10):
        for generation in group:
            assert generation.finished
            assert EOS not in generation.tokens[:-1]
            assert len(generation.tokens) == 6 or generation.tokens[-1] == EOS
            lengths.add(len(generation.tokens))
    assert lengths == {1, 2, 3, 4, 5, 6}


def test_samples_follow_the_policy(served: Served, engine: InProcessEngine) -> None:
    (group,) = engine.generate(PROMPTS[:1], group_size=2000, seed=3, timeout=10)
    expected = served.policy(0)(torch.tensor([PROMPTS[0]])).softmax(-1)[0, -1]
    sampled = torch.tensor([g.tokens[0] for g in group])
    frequencies = torch.bincount(sampled, minlength=len(expected)) / 2000
    assert float((frequencies - expected).abs().max()) < 0.05


def test_a_seed_samples_the_same_tokens(engine: InProcessEngine) -> None:
    assert sample(engine, seed=5) == sample(engine, seed=5)
    assert sample(engine, seed=5) != sample(engine, seed=6)


def test_a_swap_in_mid_generation_shows_in_the_tokens_versions(
    served: Served, engine: InProcessEngine
) -> None:
    after_steps(engine, 2, lambda: engine.load_weights(served.state(9).items(), version=7))
    groups = sample(engine)
    longest = max((g for group in groups for g in group), key=lambda g: len(g.tokens))
    assert longest.versions == (0, 0, 7, 7, 7, 7)[: len(longest.tokens)]
    models = {0: served.policy(0), 7: served.policy(9)}
    for tokens, group in zip(PROMPTS, groups, strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED])
def test_what_an_abort_cut_short_is_continued_with_its_tokens(
    served: Served, engine: InProcessEngine, prompts: list[tuple[int, ...]]
) -> None:
    def abort() -> None:
        # The generation can only end once this, its own thread, goes on.
        with pytest.raises(TimeoutError):
            engine.pause(PauseMode.ABORT, timeout=0.001)

    after_steps(engine, 2, abort)
    cut = sample(engine, prompts)
    assert {len(g.tokens) for group in cut for g in group} <= {1, 2}
    assert not all(g.finished for group in cut for g in group)
    engine.load_weights(served.state(9).items(), version=7)
    whole = sample(engine, prompts, partials=cut)
    models = {0: served.policy(0), 7: served.policy(9)}
    for tokens, before, after in zip(prompts, cut, whole, strict=True):
        for begun, generation in zip(before, after, strict=True):
            assert generation.finished
            assert generation.tokens[: len(begun.tokens)] == begun.tokens
            if begun.finished:
                assert generation == begun
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_pause_that_keeps_lets_the_generation_finish_afterwards(engine: InProcessEngine) -> None:
    paused = threading.Event()

    def pause() -> None:
        engine.pause(PauseMode.KEEP, timeout=1)
        paused.set()

    after_steps(engine, 2, pause)
    results: list[list[list[Response]]] = []
    thread = threading.Thread(target=lambda: results.append(sample(engine)), daemon=True)
    thread.start()
    assert paused.wait(5)
    assert thread.is_alive()
    engine.resume()
    thread.join(5)
    assert all(g.finished for group in results[0] for g in group)


def test_the_callback_gets_all_tokens_so_far_after_each_step(engine: InProcessEngine) -> None:
    reported: list[list[list[Response]]] = []

    def report(groups: list[list[Response]]) -> bool:
        reported.append(groups)
        return True

    (whole,) = engine.generate(
        PROMPTS[:1], group_size=3, seed=1, timeout=10, on_partial=PartialOutputCallback(0.0, report)
    )
    assert [whole] == sample(engine, PROMPTS[:1]), "being watched changes nothing"
    assert len(reported) == max(len(generation.tokens) for generation in whole)
    for steps, (groups,) in enumerate(reported, start=1):
        for generation, end in zip(groups, whole, strict=True):
            count = min(steps, len(end.tokens))
            assert generation == Response(
                end.tokens[:count],
                end.logprobs[:count],
                end.versions[:count],
                finished=count == len(end.tokens),
            )


def test_the_callback_is_called_no_more_often_than_its_interval(engine: InProcessEngine) -> None:
    # A single call would end it: its result is not wanted.
    on_partial = PartialOutputCallback(3600.0, lambda _: False)
    groups = engine.generate(PROMPTS, group_size=3, seed=1, timeout=10, on_partial=on_partial)
    assert all(generation.finished for group in groups for generation in group)


def test_a_generation_ends_when_the_callback_returns_false(engine: InProcessEngine) -> None:
    on_partial = PartialOutputCallback(0.0, lambda _: False)
    groups = engine.generate(PROMPTS, group_size=3, seed=1, timeout=10, on_partial=on_partial)
    assert {len(generation.tokens) for group in groups for generation in group} == {1}


def test_a_deadline_gives_back_what_there_is(engine: InProcessEngine) -> None:
    engine.pause(PauseMode.WAIT, timeout=1)
    groups = engine.generate(PROMPTS, group_size=2, seed=0, timeout=0.01)
    assert groups == [[Response()] * 2] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state, name: state.pop(name), "missing {name}"),
        (lambda state, _: state.update({"extra": torch.zeros(1)}), "unknown extra"),
        (
            lambda state, name: state.update({name: torch.zeros(1, 4)}),
            r"{name} has shape \(1, 4\), not",
        ),
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    served: Served,
    engine: InProcessEngine,
    change: Callable[[dict[str, Tensor], str], object],
    message: str,
) -> None:
    before = sample(engine)
    state = served.state(9)
    name = next(iter(state))
    change(state, name)
    with pytest.raises(WeightMismatchError, match=message.format(name=name)):
        engine.load_weights(state.items(), version=3)
    assert engine.version == 0
    assert sample(engine) == before


def test_loaded_tensors_are_copied(served: Served, engine: InProcessEngine) -> None:
    before = sample(engine)
    state = served.state(0)
    engine.load_weights(state.items(), version=0)
    for tensor in state.values():
        tensor.zero_()
    assert sample(engine) == before


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "at least one prompt"),
        ([()], "prompt 0 is empty"),
        ([PROMPTS[0], (0, 99, 1)], "prompt 1 has a token outside the vocabulary of 1[36]"),
        (
            [(0, *[3] * 300, 1)],
            r"prompt 0 has 302 tokens; with a response of 6 .* (13|256) positions",
        ),
    ],
)
def test_prompts_that_the_model_cannot_take_are_refused(
    engine: InProcessEngine, prompts: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sample(engine, prompts)


def test_a_prompt_and_its_response_may_fill_the_positions(served: Served) -> None:
    whole = (0, *[3] * 6, 1)  # 8 tokens, and 5 of the response are processed: 13
    served.engine.generate([whole], group_size=1, seed=0, timeout=10)


def test_partials_must_match_the_prompts(engine: InProcessEngine) -> None:
    with pytest.raises(ValueError, match="partials must hold"):
        sample(engine, partials=[[Response()] * 2] * 4)


def test_it_serves_only_what_was_loaded(served: Served) -> None:
    engine = type(served.engine)(model=served.path)
    assert engine.version is None
    with pytest.raises(RuntimeError, match="no weights"):
        sample(engine)


def test_after_the_close_it_serves_nothing(engine: InProcessEngine) -> None:
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        sample(engine)


def test_wrong_settings_name_their_field(served: Served) -> None:
    made = type(served.engine)
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


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_of_hugging_face_is_sampled_from(
    tmp_path: Path, architecture: Architecture, tied: bool
) -> None:
    served = Served("transformers", str(write_tiny_model(tmp_path / "m", architecture, tied=tied)))
    served.engine.load_weights(served.state(0).items(), version=0)
    models = {0: served.policy(0)}
    for tokens, group in zip(RAGGED, sample(served.engine, RAGGED), strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_model_of_hugging_face_is_put_on_the_workers_device(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TransformersEngine(model=str(directory)).device == "cpu"
    monkeypatch.setattr(transformers_engine, "worker_device", lambda: "meta")
    assert TransformersEngine(model=str(directory)).device == "meta"
    assert TinyEngine(model="builtin:reverse-tiny").device == "cpu"


def test_every_end_token_of_the_generation_settings_ends_a_response(
    directory: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(directory, tmp_path / "copy")
    ends = list(range(3, 13))
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    served = Served("transformers", str(other))
    served.engine.load_weights(served.state(0, spread=0.01).items(), version=0)
    for generation in served.engine.generate(PROMPTS[:1], group_size=32, seed=0, timeout=10)[0]:
        assert not set(generation.tokens[:-1]) & set(ends)
        assert len(generation.tokens) == 6 or generation.tokens[-1] in ends
