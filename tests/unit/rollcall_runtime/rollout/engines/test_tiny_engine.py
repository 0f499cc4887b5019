"""The built-in engine: each token's log-probability is that of the version it says."""

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.rollout.engines.tiny_engine import TinyEngine
from rollcall_runtime.rollout.inference_engine import (
    PartialOutputCallback,
    PauseMode,
    WeightMismatchError,
)
from rollcall_runtime.tasks.reverse import EOS, prompt
from rollcall_runtime.worker.errors import SpecError

PROMPTS = [prompt(index, seed=0) for index in range(4)]
RAGGED = [(0, 3, 1), (0, 3, 4, 5, 6, 7, 1), (5,), (0, 3, 4, 5, 1)]


def policy(seed: int) -> TinyDecoder:
    """A model far from uniform, so that a wrong weight or position would show."""
    model = TinyDecoder.seeded(TinyConfig(), seed=seed).requires_grad_(requires_grad=False)
    for parameter in model.parameters():
        parameter.mul_(4)
    return model


@pytest.fixture
def engine() -> TinyEngine:
    engine = TinyEngine(model="builtin:reverse-tiny")
    engine.load_weights(policy(0).state_dict().items(), version=0)
    return engine


def sample(
    engine: TinyEngine,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    seed: int = 1,
    partials: Sequence[Sequence[Response]] | None = None,
) -> list[list[Response]]:
    return engine.generate(prompts, group_size=3, seed=seed, timeout=10, partials=partials)


def after_steps(engine: TinyEngine, count: int, action: Callable[[], None]) -> None:
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
    prompt: Sequence[int], generation: Response, models: dict[int, TinyDecoder]
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
    engine: TinyEngine, prompts: list[tuple[int, ...]]
) -> None:
    for tokens, group in zip(prompts, sample(engine, prompts), strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, {0: policy(0)})
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_response_ends_with_eos_or_at_its_bound(engine: TinyEngine) -> None:
    engine.load_weights(TinyDecoder.seeded(TinyConfig(), seed=0).state_dict().items(), version=0)
    lengths = set()
    for group in engine.generate(PROMPTS, group_size=32, seed=3, timeout=10):
        for generation in group:
            assert generation.finished
            assert EOS not in generation.tokens[:-1]
            assert len(generation.tokens) == 6 or generation.tokens[-1] == EOS
            lengths.add(len(generation.tokens))
    assert lengths == {1, 2, 3, 4, 5, 6}


def test_samples_follow_the_policy(engine: TinyEngine) -> None:
    (group,) = engine.generate(PROMPTS[:1], group_size=2000, seed=3, timeout=10)
    frequencies = torch.bincount(torch.tensor([g.tokens[0] for g in group]), minlength=13) / 2000
    expected = policy(0)(torch.tensor([PROMPTS[0]])).softmax(-1)[0, -1]
    assert float((frequencies - expected).abs().max()) < 0.05


def test_a_seed_samples_the_same_tokens(engine: TinyEngine) -> None:
    assert sample(engine, seed=5) == sample(engine, seed=5)
    assert sample(engine, seed=5) != sample(engine, seed=6)


def test_a_swap_in_mid_generation_shows_in_the_tokens_versions(engine: TinyEngine) -> None:
    after_steps(engine, 2, lambda: engine.load_weights(policy(9).state_dict().items(), version=7))
    groups = sample(engine)
    longest = max((g for group in groups for g in group), key=lambda g: len(g.tokens))
    assert longest.versions == (0, 0, 7, 7, 7, 7)[: len(longest.tokens)]
    models = {0: policy(0), 7: policy(9)}
    for tokens, group in zip(PROMPTS, groups, strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED])
def test_what_an_abort_cut_short_is_continued_with_its_tokens(
    engine: TinyEngine, prompts: list[tuple[int, ...]]
) -> None:
    def abort() -> None:
        # The generation can only end once this, its own thread, goes on.
        with pytest.raises(TimeoutError):
            engine.pause(PauseMode.ABORT, timeout=0.001)

    after_steps(engine, 2, abort)
    cut = sample(engine, prompts)
    assert {len(g.tokens) for group in cut for g in group} <= {1, 2}
    assert not all(g.finished for group in cut for g in group)
    engine.load_weights(policy(9).state_dict().items(), version=7)
    whole = sample(engine, prompts, partials=cut)
    models = {0: policy(0), 7: policy(9)}
    for tokens, before, after in zip(prompts, cut, whole, strict=True):
        for begun, generation in zip(before, after, strict=True):
            assert generation.finished
            assert generation.tokens[: len(begun.tokens)] == begun.tokens
            if begun.finished:
                assert generation == begun
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_pause_that_keeps_lets_the_generation_finish_afterwards(engine: TinyEngine) -> None:
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


def test_the_callback_gets_all_tokens_so_far_after_each_step(engine: TinyEngine) -> None:
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


def test_the_callback_is_called_no_more_often_than_its_interval(engine: TinyEngine) -> None:
    # A single call would end it: its result is not wanted.
    on_partial = PartialOutputCallback(3600.0, lambda _: False)
    groups = engine.generate(PROMPTS, group_size=3, seed=1, timeout=10, on_partial=on_partial)
    assert all(generation.finished for group in groups for generation in group)


def test_a_generation_ends_when_the_callback_returns_false(engine: TinyEngine) -> None:
    on_partial = PartialOutputCallback(0.0, lambda _: False)
    groups = engine.generate(PROMPTS, group_size=3, seed=1, timeout=10, on_partial=on_partial)
    assert {len(generation.tokens) for group in groups for generation in group} == {1}


def test_a_deadline_gives_back_what_there_is(engine: TinyEngine) -> None:
    engine.pause(PauseMode.WAIT, timeout=1)
    groups = engine.generate(PROMPTS, group_size=2, seed=0, timeout=0.01)
    assert groups == [[Response()] * 2] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.weight"), "missing head.weight"),
        (lambda state: state.update({"extra": torch.zeros(1)}), "unknown extra"),
        (
            lambda state: state.update({"head.weight": torch.zeros(13, 4)}),
            r"head.weight has shape \(13, 4\), not \(13, 64\)",
        ),
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    engine: TinyEngine, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    before = sample(engine)
    state = dict(policy(9).state_dict())
    change(state)
    with pytest.raises(WeightMismatchError, match=message):
        engine.load_weights(state.items(), version=3)
    assert engine.version == 0
    assert sample(engine) == before


def test_loaded_tensors_are_copied(engine: TinyEngine) -> None:
    before = sample(engine)
    state = policy(0).state_dict()
    engine.load_weights(state.items(), version=0)
    for tensor in state.values():
        tensor.zero_()
    assert sample(engine) == before


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "at least one prompt"),
        ([()], "prompt 0 is empty"),
        ([PROMPTS[0], (0, 13, 1)], "prompt 1 has a token outside the vocabulary of 13"),
        ([(0, *[3] * 7, 1)], "prompt 0 has 9 tokens; with a response of 6 .* 13 positions"),
    ],
)
def test_prompts_that_the_model_cannot_take_are_refused(
    engine: TinyEngine, prompts: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sample(engine, prompts)


def test_partials_must_match_the_prompts(engine: TinyEngine) -> None:
    with pytest.raises(ValueError, match="partials must hold"):
        sample(engine, partials=[[Response()] * 2] * 4)


def test_it_serves_only_what_was_loaded() -> None:
    engine = TinyEngine(model="builtin:reverse-tiny")
    assert engine.version is None
    with pytest.raises(RuntimeError, match="no weights"):
        sample(engine)


def test_after_the_close_it_serves_nothing(engine: TinyEngine) -> None:
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        sample(engine)


def test_wrong_settings_name_their_field() -> None:
    with pytest.raises(SpecError, match=r"^spec.rollouts\[\].engine.config.maxToken: unknown"):
        TinyEngine(model="builtin:reverse-tiny", config={"maxToken": 3})
    with pytest.raises(SpecError, match=r"config: maxTokens and threads must be at least 1"):
        TinyEngine(model="builtin:reverse-tiny", config={"maxTokens": 0})
