"""The losses of critic, reward model and supervised training, by hand."""

import math

import pytest
import torch

from rollcall_runtime.train.algorithms.preference_loss import (
    PreferenceLoss,
    bradley_terry_loss,
    score_gradients,
)
from rollcall_runtime.train.algorithms.supervised_loss import SupervisedLoss
from rollcall_runtime.train.algorithms.value_loss import ValueLoss, clipped_value_loss
from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate
from rollcall_runtime.train.train_loss import ModelOutput


def batch_of(masks: list[list[bool]], **extras: list[list[float]]) -> TrainBatch:
    return collate(
        [
            TrainExample(
                tokens=[1] * len(mask),
                targets=[1] * len(mask),
                mask=mask,
                extras={name: values[row] for name, values in extras.items()},
            )
            for row, mask in enumerate(masks)
        ]
    )


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "clipped"),
    [
        (1.0, 1.0, 3.0, 0.2, 2.0, False),  # within the clip: (1 - 3)^2 / 2
        (2.0, 1.0, 3.0, 0.2, 1.62, True),  # nearer by more than allowed: (1.2 - 3)^2 / 2
        (0.0, 1.0, 3.0, 0.2, 4.5, False),  # moved away: the larger error, its own
        (2.0, 1.0, 3.0, 0.0, 0.5, False),  # no clip
    ],
)
def test_a_value_may_come_nearer_by_the_clip_alone(
    value: float, old: float, target: float, clip: float, loss: float, clipped: bool
) -> None:
    losses, where = clipped_value_loss(
        torch.tensor(value), torch.tensor(old), torch.tensor(target), clip=clip
    )
    assert float(losses) == pytest.approx(loss)
    assert bool(where) is clipped


def test_the_value_loss_counts_what_the_mask_does() -> None:
    batch = batch_of(
        [[False, True, True], [True]],
        returns=[[0.0, 1.0, 2.0], [3.0]],
        old_values=[[0.0, 0.5, 1.5], [2.5]],
    )
    loss = ValueLoss(clip=0.0)
    values = torch.tensor([[math.nan, 0.0, 1.0], [1.0, math.nan, math.nan]], requires_grad=True)
    sums = loss(ModelOutput(values=values), batch)
    assert float(sums.loss.detach()) == pytest.approx((1 + 1 + 4) / 2)
    assert float(loss.denominator(batch)) == 3
    sums.loss.backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.nan_to_num(99).tolist() == [[0, -1, -1], [-2, 0, 0]]
    metrics = {name: float(total / count) for name, (total, count) in sums.metrics.items()}
    assert metrics == pytest.approx(
        {"vf_clipfrac": 0, "vpred_mean": 2 / 3, "return_mean": 2, "value_error": 2}
    )


def test_supervised_training_lowers_minus_the_log_probability_of_the_targets() -> None:
    batch = batch_of([[False, True, True], [True]])
    loss = SupervisedLoss()
    logprobs = torch.tensor([[math.nan, -1.0, -2.0], [-4.0, math.nan, math.nan]])
    assert float(loss(ModelOutput(logprobs=logprobs), batch).loss) == pytest.approx(7)
    assert float(loss.denominator(batch)) == 3


def test_a_preference_is_the_log_odds_of_its_scores() -> None:
    found = bradley_terry_loss(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 3.0]))
    assert found.tolist() == pytest.approx([math.log(1 + math.exp(-1)), math.log(1 + math.exp(3))])


def test_the_loss_of_single_rows_has_the_gradient_of_the_loss_of_pairs() -> None:
    scores = torch.tensor([2.0, 1.0, 0.0, 3.0], requires_grad=True)  # chosen, rejected, ...
    pairs = bradley_terry_loss(scores[0::2], scores[1::2]).mean()
    (expected,) = torch.autograd.grad(pairs, scores)
    gradients = torch.stack(score_gradients(scores[0::2].detach(), scores[1::2].detach()), 1)
    batch = batch_of([[True]] * 4).with_extras(score_gradients=gradients.flatten())
    loss, total = PreferenceLoss(), torch.zeros(())
    for row in (2, 0, 3, 1):  # each row in a micro-batch of its own
        total = total + loss(ModelOutput(scores=scores[row : row + 1]), batch.select([row])).loss
    (found,) = torch.autograd.grad(total / loss.denominator(batch), scores)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("loss", "head"),
    [
        (ValueLoss(clip=0.2), "value"),
        (SupervisedLoss(), "language-model"),
        (PreferenceLoss(), "sequence-classification"),
    ],
)
def test_a_model_with_another_head_is_refused(
    loss: ValueLoss | SupervisedLoss | PreferenceLoss, head: str
) -> None:
    with pytest.raises(ValueError, match=f'needs a model with the head "{head}"'):
        loss(ModelOutput(), batch_of([[True]]))
