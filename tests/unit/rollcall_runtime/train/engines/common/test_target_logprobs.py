"""Log-probabilities and entropies against torch's log_softmax."""

import pytest
import torch
from torch import Tensor

from rollcall_runtime.train.engines.common import target_logprobs as module
from rollcall_runtime.train.engines.common.target_logprobs import target_logprobs
from tests.process.engines.memory import kept_for_backward

POSITIONS, VOCABULARY = 7, 11


def logits_and_targets() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(POSITIONS, VOCABULARY, generator=generator) * 3
    return logits, torch.randint(VOCABULARY, (POSITIONS,), generator=generator)


def by_log_softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


@pytest.fixture(params=[1, 3 * VOCABULARY, 1 << 21], ids=["one row", "three rows", "all rows"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ELEMENTS", request.param)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("entropy", [False, True])
def test_values_and_gradients_are_those_of_log_softmax(entropy: bool) -> None:
    logits, targets = logits_and_targets()
    weights = torch.linspace(-1, 2, POSITIONS), torch.linspace(3, -1, POSITIONS)
    found, gradients = [], []
    for way in (lambda z, t: target_logprobs(z, t, entropy=entropy), by_log_softmax):
        leaf = logits.clone().requires_grad_()
        values = way(leaf + 0, targets)[: 1 + entropy]
        found.append([value.detach() for value in values])
        pairs = zip(weights, values, strict=False)
        total = torch.stack([(weight * value).sum() for weight, value in pairs]).sum()
        total.backward()  # type: ignore[no-untyped-call]
        gradients.append(leaf.grad)
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=0)


def test_no_position_has_no_log_probability() -> None:
    logits = torch.zeros(0, VOCABULARY, requires_grad=True)
    (logprobs,) = target_logprobs(logits + 0, torch.zeros(0, dtype=torch.int64), entropy=False)
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.shape == (0,)
    assert logits.grad is not None


def test_the_logits_are_all_that_is_kept_of_their_size() -> None:
    logits, targets = logits_and_targets()
    with kept_for_backward() as kept:
        target_logprobs(logits.requires_grad_() + 0, targets, entropy=True)
    size = POSITIONS * VOCABULARY * 4
    assert [each for each in kept.values() if each >= size] == [size]


def test_a_second_backward_pass_is_refused() -> None:
    logits, targets = logits_and_targets()
    (logprobs,) = target_logprobs(logits.requires_grad_() + 0, targets, entropy=False)
    logprobs.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="inplace operation"):
        logprobs.sum().backward()  # type: ignore[no-untyped-call]
