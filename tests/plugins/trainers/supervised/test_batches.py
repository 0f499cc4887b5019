"""Batches of rows: which rows, what is learnt of them, and what is counted."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall_plugins.trainers.supervised.batches import SupervisedBatches
from rollcall_protocol.data_config import TooLong
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_runtime.data.supervised_rows import open_supervised
from tests.unit.rollcall_runtime.data.character_tokenizer import no_tokenizer
from tests.unit.rollcall_runtime.train.supervised_data import reverse_answers


def batches(tmp_path: Path, *, size: int, rows: int = 8, **data: object) -> SupervisedBatches:
    config = replace(reverse_answers(tmp_path / "rows.jsonl", rows=rows), **data)  # type: ignore[arg-type]
    return SupervisedBatches(open_supervised(config, model=no_tokenizer()), size)


def test_a_batch_has_successive_rows_and_learns_the_completions(tmp_path: Path) -> None:
    found = batches(tmp_path, size=3)
    batch = found.batch(1)
    rows = [found.rows.item(number) for number in (3, 4, 5)]
    for place, row in enumerate(rows):
        assert row is not None
        assert batch.tokens[place].tolist() == row.tokens[:-1]
        assert batch.targets[place].tolist() == row.tokens[1:]
        assert batch.mask[place].tolist() == [False] * 6 + [True] * 6


@pytest.mark.parametrize(("rows", "size"), [(5, 64), (8, 3), (8, 4), (7, 1)])
def test_each_epoch_has_each_row_once(tmp_path: Path, rows: int, size: int) -> None:
    """As transformers' Trainer counts: the last batch of an epoch has what is left."""
    found = batches(tmp_path, size=size, rows=rows)
    steps = SupervisedConfig(rows_per_step=size, epochs=3).steps(rows)
    each = steps // 3
    assert each == math.ceil(rows / size)
    every = [[tuple(row) for row in found.batch(n).tokens.tolist()] for n in range(steps)]
    for epoch in (every[:each], every[each : 2 * each], every[2 * each :]):
        learnt = [row for batch in epoch for row in batch]
        assert len(learnt) == len(set(learnt)) == rows
        assert [len(batch) for batch in epoch[:-1]] == [size] * (each - 1)


def test_reading_ahead_gives_the_same_batches(tmp_path: Path) -> None:
    found = batches(tmp_path, size=3)
    ahead = list(found.ahead(range(2, 5)))
    assert [b.tokens.tolist() for b in ahead] == [found.batch(n).tokens.tolist() for n in (2, 3, 4)]
    assert list(found.ahead(range(0))) == []


def test_an_evaluation_reads_every_row_once(tmp_path: Path) -> None:
    found = batches(tmp_path, size=3)
    read = [tuple(row) for batch in found.once() for row in batch.tokens.tolist()]
    assert len(read) == len(set(read)) == 8


def test_rows_that_are_too_long_are_counted_and_a_batch_may_be_empty(tmp_path: Path) -> None:
    dropped = batches(tmp_path, size=3, max_tokens=5, too_long=TooLong.DROP)
    batch = dropped.batch(0)
    assert (batch.rows, dropped.counts.read, dropped.counts.left_out) == (0, 3, 3)
    cut = batches(tmp_path, size=3, max_tokens=10, too_long=TooLong.TRUNCATE_RIGHT)
    assert cut.batch(0).tokens.shape == (3, 9)
    assert (cut.counts.left_out, cut.counts.truncated) == (0, 3)
