"""What every inference engine promises, by its public interface alone.

A plug-in's own test module imports all of this, and defines the fixtures of
`served_engine.fixtures_of`. docs/plugins.md shows one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
import torch
from torch import Tensor

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.inference_engine import NewTokens, PauseMode, WeightMismatchError
from rollcall_runtime.tasks.reverse import EOS
from tests.unit.rollcall_runtime.rollout.engine_driver import (
    SECONDS,
    EngineDriver,
    joined,
    requests_of,
)
from tests.unit.rollcall_runtime.rollout.engines.served_engine import (
    PROMPTS,
    RAGGED,
    SIX,
    Served,
    recomputed,
    sample,
)


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED])
def test_logprobs_are_those_of_the_model(
    served: Served, engine: EngineDriver, prompts: list[tuple[int, ...]]
) -> None:
    models = {0: served.policy(0)}
    for tokens, group in zip(prompts, sample(engine, prompts), strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, models)
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_response_ends_with_eos_or_at_its_bound(served: Served, engine: EngineDriver) -> None:
    nearly_uniform = served.state(0, spread=0.01)
    engine.load_weights(nearly_uniform.items(), version=0)
    lengths = set()
    for group in engine.sample(PROMPTS, group_size=32, seed=3, sampling=[SIX] * len(PROMPTS)):
        for generation in group:
            assert generation.finished
            assert EOS not in generation.tokens[:-1]
            assert len(generation.tokens) == 6 or generation.tokens[-1] == EOS
            lengths.add(len(generation.tokens))
    assert lengths == {1, 2, 3, 4, 5, 6}


def test_samples_follow_the_policy(served: Served, engine: EngineDriver) -> None:
    (group,) = engine.sample(
        PROMPTS[:1], group_size=2000, seed=3, sampling=[SamplingConfig(max_tokens=1)]
    )
    expected = served.policy(0)(torch.tensor([PROMPTS[0]])).softmax(-1)[0, -1]
    sampled = torch.tensor([g.tokens[0] for g in group])
    frequencies = torch.bincount(sampled, minlength=len(expected)) / 2000
    assert float((frequencies - expected).abs().max()) < 0.05


def test_a_seed_samples_the_same_tokens(engine: EngineDriver) -> None:
    assert sample(engine, seed=5) == sample(engine, seed=5)
    assert sample(engine, seed=5) != sample(engine, seed=6)


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
    engine: EngineDriver,
    change: Callable[[dict[str, Tensor], str], object],
    message: str,
) -> None:
    before = sample(engine)
    state = served.state(9)
    name = next(iter(state))
    change(state, name)
    with pytest.raises(WeightMismatchError, match=message.format(name=name)):
        engine.load_weights(state.items(), version=3)
    assert engine.engine.version == 0
    assert sample(engine) == before


def test_loaded_tensors_are_copied(served: Served, engine: EngineDriver) -> None:
    before = sample(engine)
    state = served.state(0)
    engine.load_weights(state.items(), version=0)
    for tensor in state.values():
        tensor.zero_()
    assert sample(engine) == before


def test_it_serves_only_what_was_loaded(served: Served) -> None:
    made = served.made()
    assert made.version is None
    engine = EngineDriver(made)
    with pytest.raises(RuntimeError, match="no weights"):
        sample(engine)
    engine.close()


def test_after_the_close_it_serves_nothing(engine: EngineDriver) -> None:
    engine.run(engine.engine.close())
    with pytest.raises(RuntimeError, match="closed"):
        sample(engine)


def test_the_logprobs_are_those_at_the_temperature(served: Served, engine: EngineDriver) -> None:
    policy = served.policy(0)
    sampling = [SamplingConfig(temperature=0.5, max_tokens=6)] * len(PROMPTS)
    groups = engine.sample(PROMPTS, group_size=2, seed=1, sampling=sampling)
    for tokens, group in zip(PROMPTS, groups, strict=True):
        for generation in group:
            expected = recomputed(tokens, generation, {0: lambda tokens: policy(tokens) / 0.5})
            assert generation.logprobs == pytest.approx(expected, abs=1e-5)


def test_each_prompt_has_a_length_of_its_own(served: Served, engine: EngineDriver) -> None:
    engine.load_weights(served.state(0, spread=0.01).items(), version=0)
    sampling = [SamplingConfig(max_tokens=count) for count in (1, 3, 6, 5)]
    groups = engine.sample(PROMPTS, group_size=16, seed=1, sampling=sampling)
    longest = [max(len(generation.tokens) for generation in group) for group in groups]
    assert longest == [1, 3, 6, 5]


def test_a_stop_token_ends_a_response(served: Served, engine: EngineDriver) -> None:
    engine.load_weights(served.state(0, spread=0.01).items(), version=0)
    sampling = [SamplingConfig(stop_token_ids=(4, 7), max_tokens=6)] * len(PROMPTS)
    groups = engine.sample(PROMPTS, group_size=16, seed=1, sampling=sampling)
    ends = {generation.tokens[-1] for group in groups for generation in group}
    assert {4, 7} <= ends
    for group in groups:
        assert not any({4, 7} & set(generation.tokens[:-1]) for generation in group)


@pytest.mark.parametrize("running", PauseMode)
def test_tokens_name_the_weights_that_sampled_them_while_these_change(
    served: Served, engine: EngineDriver, running: PauseMode
) -> None:
    (requests,) = requests_of(PROMPTS[:1], group_size=3, seed=1, sampling=[SIX])
    weights = served.state(9)

    async def changed() -> list[Response]:
        streams = [engine.engine.generate(request) for request in requests]
        first = await asyncio.gather(*(anext(stream) for stream in streams))
        update = asyncio.create_task(
            engine.engine.update_weights(
                weights.items(), version=7, running=running, seconds=SECONDS
            )
        )
        rest = await asyncio.gather(*(whole(stream) for stream in streams))
        await update
        return [joined(Response(), (one, *more)) for one, more in zip(first, rest, strict=True)]

    async def whole(stream: AsyncGenerator[NewTokens, None]) -> list[NewTokens]:
        return [piece async for piece in stream]

    found = engine.run(changed())
    allowed = {0, 7} if running is PauseMode.KEEP else {0}
    models = {0: served.policy(0), 7: served.policy(9)}
    for response in found:
        assert set(response.versions) <= allowed
        assert list(response.versions) == sorted(response.versions)
        assert response.finished or running is PauseMode.ABORT
        expected = recomputed(PROMPTS[0], response, models)
        assert response.logprobs == pytest.approx(expected, abs=1e-5)
    assert engine.engine.version == 7
    assert {v for group in sample(engine) for g in group for v in g.versions} == {7}


def test_what_was_begun_is_continued(engine: EngineDriver) -> None:
    whole = sample(engine)
    begun = [[first_token(response) for response in group] for group in whole]
    for group, again in zip(whole, sample(engine, begun=begun), strict=True):
        assert [g.tokens for g in again] == [g.tokens for g in group]
        for one, other in zip(group, again, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def first_token(response: Response) -> Response:
    if len(response.tokens) == 1:
        return response
    return Response(response.tokens[:1], response.logprobs[:1], response.versions[:1])


@pytest.mark.parametrize("tokens", [(), (0, 99, 1)], ids=["empty", "unknown token"])
def test_a_prompt_that_no_model_can_take_is_refused(
    engine: EngineDriver, tokens: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="prompt"):
        sample(engine, [tokens])
