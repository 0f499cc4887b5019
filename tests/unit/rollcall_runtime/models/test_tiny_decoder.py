"""The tiny decoder: its size, its seed, and a cache that changes nothing."""

import math

import pytest
import torch

from rollcall_runtime.models.tiny_decoder import KeyValueCache, TinyConfig, TinyDecoder


@pytest.fixture
def model() -> TinyDecoder:
    return TinyDecoder.seeded(TinyConfig(), seed=1)


def some_tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 13, (rows, length), generator=torch.Generator().manual_seed(5))


def test_it_has_the_size_it_says(model: TinyDecoder) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == 102_592


def test_a_seed_gives_the_same_weights_and_leaves_the_global_rng_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (TinyDecoder.seeded(TinyConfig(), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


def test_the_first_policy_is_nearly_uniform(model: TinyDecoder) -> None:
    probabilities = model(some_tokens(8, 12)).softmax(-1)
    assert float(probabilities.detach().sub(1 / 13).abs().max()) < 0.05


def test_no_token_sees_what_comes_after_it(model: TinyDecoder) -> None:
    tokens = some_tokens(2, 10)
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 13
    assert torch.equal(model(tokens)[:, :6], model(changed)[:, :6])


def test_the_cache_changes_the_cost_and_not_the_logits(model: TinyDecoder) -> None:
    tokens = some_tokens(3, 12)
    cache = KeyValueCache()
    pieces = [model(tokens[:, :7], cache=cache)]
    pieces += [
        model(tokens[:, at : at + 1], cache=cache, positions=torch.tensor([at]))
        for at in range(7, 12)
    ]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens), atol=1e-6, rtol=1e-5)


def test_samples_can_share_their_prompts_cache(model: TinyDecoder) -> None:
    prompts, last = some_tokens(2, 7), some_tokens(6, 1)
    cache = KeyValueCache()
    model(prompts, cache=cache)
    cache.select(torch.tensor([0, 0, 0, 1, 1, 1]))
    logits = model(last, cache=cache, positions=torch.tensor([7]))
    whole = torch.cat([prompts.repeat_interleave(3, 0), last], dim=1)
    torch.testing.assert_close(logits, model(whole)[:, -1:], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"heads": 5}, {"layers": 0}, {"positions": -1}, {"eos": 13}, {"eos": -1}]
)
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must divide|must be a number|outside the"):
        TinyConfig(**wrong)


def test_initial_loss_is_that_of_a_uniform_guess(model: TinyDecoder) -> None:
    tokens = some_tokens(16, 13)
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss.detach()) == pytest.approx(math.log(13), abs=0.1)
