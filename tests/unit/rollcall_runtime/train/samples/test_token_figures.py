"""Advantage and mismatch of recorded rows are those of their tokens, whichever rank has them."""

import math
from typing import Any

import pytest
import torch

from rollcall_protocol.algorithm_settings import AlgorithmSettings
from rollcall_runtime.train.roles.actor import Actor
from rollcall_runtime.train.roles.policy_step import PolicyStep
from rollcall_runtime.train.samples import token_figures as module
from rollcall_runtime.train.samples.token_figures import (
    ROWS,
    TokenFigures,
    token_figures,
    with_recorded_rows,
)
from rollcall_runtime.train.train_batch import TrainBatch
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks
from tests.unit.rollcall_runtime.train.roles.bigram_engine import (
    VOCABULARY,
    BigramEngine,
    sample_batch,
)

REWARDS, GROUPS = [0.0, 1.0, 0.5, 0.25], [0.0, 0.0, 1.0, 1.0]
UNIFORM = -math.log(VOCABULARY)


def recorded(*groups: bool) -> TrainBatch:
    """Rows of one, two, three and one tokens, which the rollouts thought likelier by 0.5."""
    batch = sample_batch(REWARDS, GROUPS)
    behaviour = torch.where(batch.mask, UNIFORM + 0.5, 0.0)
    return with_recorded_rows(batch.with_extras(behaviour_logprobs=behaviour), groups)


def figures(
    batch: TrainBatch, *, minibatches: int = 1, settings: AlgorithmSettings | None = None
) -> dict[int, TokenFigures]:
    settings = settings or AlgorithmSettings()
    actor = Actor(BigramEngine(), settings, minibatches=minibatches)
    result = PolicyStep(settings, actor=actor).run(batch, step=0)
    return token_figures(as_ranks(FakeRanks()), batch, result.advantages, result.mismatch)


def test_without_a_recorded_group_a_batch_stays_as_it_is() -> None:
    batch = sample_batch(REWARDS, GROUPS)
    assert with_recorded_rows(batch, [False, False]) is batch
    assert figures(batch) == {}


def test_rows_of_recorded_groups_have_a_value_for_each_token() -> None:
    found = figures(recorded(False, True))
    assert {row: len(of_row.advantages) for row, of_row in found.items()} == {2: 3, 3: 1}
    assert len(set(found[2].advantages)) == 1
    assert found[2].advantages[0] == pytest.approx(-found[3].advantages[0])
    for of_row in found.values():
        assert of_row.mismatch == pytest.approx([-0.5] * len(of_row.advantages), abs=1e-5)


def test_the_policy_before_the_first_update_counts_in_later_minibatches() -> None:
    """The proximal policy of a batch, which the loss needs."""
    settings = AlgorithmSettings(ratio_base="proximal")
    assert settings.needs_proximal
    one = figures(recorded(True, True), settings=settings)
    two = figures(recorded(True, True), minibatches=2, settings=settings)
    assert set(one) == set(two) == {0, 1, 2, 3}
    assert two[2].advantages == one[2].advantages
    assert set(two[0].mismatch) == {-0.5}


def test_what_is_not_finite_is_unknown() -> None:
    batch = recorded(True, False)
    behaviour = batch.extras["behaviour_logprobs"].clone()
    behaviour[1, 1] = -math.inf
    found = figures(batch.with_extras(behaviour_logprobs=behaviour))
    assert found[1].mismatch == [None, pytest.approx(-0.5, abs=1e-5)]


def test_rows_that_another_rank_computed_come_from_it() -> None:
    batch, ranks = recorded(True, True), FakeRanks()
    ranks.others = [[[1, [0.25, None]]]]
    advantages = torch.zeros(batch.mask.shape)
    found = token_figures(as_ranks(ranks), batch, advantages, {0: [0.5]})
    assert [list(found[row].mismatch) for row in range(4)] == [[0.5], [0.25, None], [], []]


def test_a_rank_sends_no_more_than_may_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_GATHERED", 4)
    found = figures(recorded(True, True))
    assert [len(of_row.mismatch) for of_row in found.values()] == [1, 2, 0, 0]


def test_recording_changes_nothing_that_is_learnt() -> None:
    tables = []
    for batch in (recorded(True, True), recorded(False, False)):
        engine = BigramEngine()
        settings = AlgorithmSettings()
        actor = Actor(engine, settings, minibatches=2)
        updates: Any = PolicyStep(settings, actor=actor).run(batch, step=0).actor
        tables.append((engine.table.detach().clone(), [update.loss for update in updates]))
    assert torch.equal(tables[0][0], tables[1][0])
    assert tables[0][1] == tables[1][1]


def test_rows_are_numbered_from_one_so_that_none_is_zero() -> None:
    assert recorded(False, True).extras[ROWS].tolist() == [0.0, 0.0, 3.0, 4.0]
