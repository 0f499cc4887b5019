"""Rows packed one after the other, and back."""

import torch

from rollcall_runtime.train.engines.common.packing import packed_input, padded_input, unpacked
from rollcall_runtime.train.train_batch import TrainExample, collate


def test_packed_rows_have_no_padding_and_their_own_positions() -> None:
    batch = collate([TrainExample.of_sequence([5, 6, 7, 8], predicted_from=2)] * 2)
    batch = collate(
        [
            TrainExample.of_sequence([5, 6, 7, 8], predicted_from=2),
            TrainExample.of_sequence([1, 2]),
            TrainExample.of_sequence([3, 4, 9]),
        ]
    )
    packed = packed_input(batch)
    assert packed.tokens.tolist() == [[5, 6, 7, 1, 3, 4]]
    assert packed.targets.tolist() == [[6, 7, 8, 2, 4, 9]]
    assert packed.mask.tolist() == [[False, True, True, True, True, True]]
    assert packed.positions is not None
    assert packed.positions.tolist() == [[0, 1, 2, 0, 0, 1]]
    rows = unpacked(packed.tokens.float(), batch)
    assert rows.tolist() == [[5, 6, 7], [1, 0, 0], [3, 4, 0]]


def test_outputs_carry_their_gradient_back() -> None:
    batch = collate([TrainExample.of_sequence([1, 2, 3]), TrainExample.of_sequence([1, 2])])
    values = torch.ones(1, 3, requires_grad=True)
    (unpacked(values, batch) * torch.tensor([[1.0, 2.0], [3.0, 9.0]])).sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.tolist() == [[1, 2, 3]]


def test_padded_rows_need_no_positions() -> None:
    batch = collate([TrainExample.of_sequence([1, 2, 3])])
    assert padded_input(batch).positions is None
