"""What the heads give, against logits of the whole model."""

import pytest
import torch
from torch import Tensor, nn

from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.models.model_parts import output_layer
from rollcall_runtime.models.model_source import Head
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.engines.common.model_heads import model_output, with_head
from rollcall_runtime.train.train_batch import TrainBatch
from tests.unit.rollcall_runtime.train.batches import random_batch

BATCH = random_batch(seed=2)
PADDED, PACKED = EngineSettings(), EngineSettings(packing=True)
HEADS: tuple[tuple[Head, str], ...] = (("value", "values"), ("sequence-classification", "scores"))


def built(head: Head = "language-model", *, chunk: int = 0, temperature: float = 1.0) -> nn.Module:
    model = open_model("builtin:reverse-tiny").build(head=head, seed=4)
    if head != "language-model":  # new ones are made of zeros
        generator = torch.Generator().manual_seed(5)
        nn.init.normal_(output_layer(model).weight, std=0.1, generator=generator)
    return with_head(model, head, logprob_chunk=chunk, temperature=temperature)


def expected(batch: TrainBatch) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropy where the mask is true."""
    logprobs = built().model(batch.tokens).log_softmax(-1)  # type: ignore[operator]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, batch.targets[..., None])[..., 0][batch.mask], entropy[batch.mask]


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("chunk", [0, 1, 7, 10_000])
def test_log_probabilities_and_entropy(chunk: int, packing: bool) -> None:
    output = model_output(
        built(chunk=chunk),
        BATCH,
        head="language-model",
        settings=PACKED if packing else PADDED,
        entropy=True,
    )
    assert output.logprobs is not None
    assert output.entropy is not None
    logprobs, entropy = expected(BATCH)
    torch.testing.assert_close(output.logprobs[BATCH.mask], logprobs, atol=1e-6, rtol=0)
    torch.testing.assert_close(output.entropy[BATCH.mask], entropy, atol=1e-6, rtol=0)
    assert not output.logprobs[~BATCH.mask].any()


def gradients(*, chunk: int = 0, packing: bool = False) -> dict[str, Tensor]:
    module = built(chunk=chunk)
    output = model_output(
        module,
        BATCH,
        head="language-model",
        settings=PACKED if packing else PADDED,
        entropy=False,
    )
    assert output.logprobs is not None
    assert output.entropy is None
    output.logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def test_a_chunked_output_layer_has_the_same_gradients() -> None:
    torch.testing.assert_close(gradients(chunk=5), gradients(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("head", ["language-model", "value", "sequence-classification"])
def test_packing_changes_no_output(head: Head) -> None:
    found = []
    for packing in (False, True):
        output = model_output(
            built(head), BATCH, head=head, settings=PACKED if packing else PADDED, entropy=False
        )
        tensors = [t for t in (output.logprobs, output.values, output.scores) if t is not None]
        assert len(tensors) == 1
        found.append(tensors[0])
    if found[0].ndim == 2:
        found = [torch.where(BATCH.mask, tensor, 0.0) for tensor in found]
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=0)


def test_values_stand_at_each_position_and_scores_at_the_last_one() -> None:
    module = built("value")
    values, scores = (
        getattr(
            model_output(module, BATCH, head=head, settings=PADDED, entropy=False),
            name,
        )
        for head, name in HEADS
    )
    rows = torch.arange(BATCH.rows)
    torch.testing.assert_close(scores, values[rows, BATCH.lengths - 1])


def test_logits_of_a_chunk_at_a_time_are_in_memory() -> None:
    """The longest tensor that any layer gives has as many rows as the chunk."""
    seen: list[int] = []
    module = built(chunk=4)
    head: nn.Module = module.model.head  # type: ignore[assignment,union-attr]
    head.register_forward_hook(lambda _module, _given, found: seen.append(found.shape[-2]))
    model_output(module, BATCH, head="language-model", settings=PADDED, entropy=False)
    assert max(seen) == 4
    assert sum(seen) == int(BATCH.mask.sum())


def scores_at(temperature: float, *, chunk: int, by_hand: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropy, and the gradient of a loss of both by the output layer."""
    module = built(chunk=chunk, temperature=temperature)
    if by_hand:
        logits = module.model(BATCH.tokens) / temperature  # type: ignore[operator]
        every = logits.log_softmax(-1)
        logprobs = every.gather(-1, BATCH.targets[..., None])[..., 0][BATCH.mask]
        entropy = -(every.exp() * every).sum(-1)[BATCH.mask]
    else:
        output = model_output(
            module,
            BATCH,
            head="language-model",
            settings=PADDED,
            entropy=True,
        )
        assert output.logprobs is not None
        assert output.entropy is not None
        logprobs, entropy = output.logprobs[BATCH.mask], output.entropy[BATCH.mask]
    weights = torch.linspace(-1, 1, len(logprobs))
    ((weights * logprobs).sum() + 0.5 * entropy.sum()).backward()
    gradient = output_layer(module.model).weight.grad  # type: ignore[arg-type]
    return logprobs.detach(), entropy.detach(), gradient  # type: ignore[return-value]


@pytest.mark.parametrize("chunk", [0, 5])
@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_the_temperature_divides_the_logits(temperature: float, chunk: int) -> None:
    found = scores_at(temperature, chunk=chunk, by_hand=False)
    by_hand = scores_at(temperature, chunk=chunk, by_hand=True)
    for got, want in zip(found, by_hand, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-5)
    plain = scores_at(1.0, chunk=chunk, by_hand=False)
    assert (plain[0] - found[0]).abs().max() > 1e-3
