"""Two fsdp2 ranks do together what one process does alone, and one can go on from their state."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.engines import two_ranks
from tests.unit.rollcall_runtime.train.reference import (
    Reference,
    assert_trained_alike,
    setup,
    update_policy,
)
from tests.unit.rollcall_runtime.train.two_processes import run_two_ranks

SECONDS = 100  # for both processes, imports included


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left behind: their results and a checkpoint."""
    folder = tmp_path_factory.mktemp("ranks")
    run_two_ranks(two_ranks.main, folder, seconds=SECONDS)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{rank}-{two_ranks.RESULT}") for rank in range(2)]


@pytest.fixture(scope="module")
def reference() -> tuple[Reference, list[dict[str, Any]]]:
    """The same steps in one process, and their figures."""
    reference, stats = Reference(), []
    for seed in range(two_ranks.STEPS):
        stats += reference.train(two_ranks.odd_batch(seed))
    return reference, [
        {"loss": item.loss, "norm": item.gradient_norm, "tokens": item.tokens} for item in stats
    ]


@pytest.mark.slow
def test_each_rank_has_half_of_the_rows_and_of_the_parameters(
    results: list[dict[str, Any]],
) -> None:
    assert [result["place"] for result in results] == [(0, 2), (1, 2)]
    assert [result["rows"] for result in results] == [[n] * two_ranks.STEPS for n in (7, 8)]
    assert sum(result["local"] for result in results) == 102_592
    assert abs(results[0]["local"] - results[1]["local"]) < 1000


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_one_process(
    results: list[dict[str, Any]], reference: tuple[Reference, list[dict[str, Any]]]
) -> None:
    for result in results:
        for got, want in zip(result["stats"], reference[1], strict=True):
            assert got["tokens"] == want["tokens"]
            assert got["loss"] == pytest.approx(want["loss"], abs=1e-5)
            assert got["gradient_norm"] == pytest.approx(want["norm"], rel=1e-5)


@pytest.mark.slow
def test_exported_weights_are_those_of_one_process(
    results: list[dict[str, Any]], reference: tuple[Reference, list[dict[str, Any]]]
) -> None:
    for result in results:
        for name, tensor in result["weights"].items():
            assert_trained_alike(name, tensor, reference[0].weights[name])


@pytest.mark.slow
def test_what_each_rank_sends_makes_the_weights_whole(results: list[dict[str, Any]]) -> None:
    for name, whole in results[0]["weights"].items():
        pieces = [
            (start, tensor)
            for result in results
            for found, start, tensor in result["shards"]
            if found == name
        ]
        assert torch.equal(torch.cat([tensor for _, tensor in pieces]), whole), name
        ends = [start + len(tensor) for start, tensor in pieces]
        assert [start for start, _ in pieces] == [0, *ends[:-1]]
    sizes = [sum(tensor.numel() for *_, tensor in result["shards"]) for result in results]
    assert sizes == [result["local"] for result in results]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # by torch 2.6 itself
def test_one_rank_goes_on_from_what_two_saved(
    folder: Path, results: list[dict[str, Any]], ranks: TrainerProcessGroup
) -> None:
    engine = Fsdp2Engine(setup(ranks))
    engine.initialize()
    try:
        assert engine.load_checkpoint(folder / two_ranks.CHECKPOINT) == {"step": two_ranks.STEPS}
        for name, tensor in engine.named_weights():
            assert torch.equal(tensor, results[0]["weights"][name])
        # The optimizer's state came along: the next step is the reference's fourth.
        batch = random_batch(seed=77)
        stats = update_policy(engine, batch)
        after = dict(engine.named_weights())
    finally:
        engine.close()
    straight_on = Reference()
    for seed in range(two_ranks.STEPS):
        straight_on.train(two_ranks.odd_batch(seed))
    expected = straight_on.train(batch)
    for got, want in zip(stats, expected, strict=True):
        assert got.loss == pytest.approx(want.loss, abs=1e-5)
    for name, tensor in after.items():
        assert_trained_alike(name, tensor, straight_on.weights[name])
