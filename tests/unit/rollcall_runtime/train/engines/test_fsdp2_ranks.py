"""Two fsdp2 ranks do together what one process does alone, and one can go on from their state."""

import multiprocessing
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rollcall_runtime.train import batch_broadcast
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.policy_update import update_policy
from rollcall_runtime.train.process_group import TrainerProcessGroup, TrainerRendezvous
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.engines import two_ranks
from tests.unit.rollcall_runtime.train.reference import MINIBATCHES, Reference, loss, setup

SECONDS = 100  # for both processes, imports included


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left behind: their results and a checkpoint."""
    folder = tmp_path_factory.mktemp("ranks")
    port = free_port()
    # As the trainer does, its processes end without taking the interpreter down.
    server = multiprocessing.get_context("forkserver")
    ranks = [server.Process(target=two_ranks.main, args=(rank, port, folder)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(SECONDS)
        assert [process.exitcode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{rank}-{two_ranks.RESULT}") for rank in range(2)]


@pytest.fixture(scope="module")
def reference() -> tuple[Reference, list[dict[str, Any]]]:
    """The same steps in one process, and their figures."""
    reference, stats = Reference(), []
    for seed in range(two_ranks.STEPS):
        batch = batch_broadcast._fill(two_ranks.odd_batch(seed), 1)
        stats += reference.train([batch.slice(0, 8), batch.slice(8, 16)])
    return reference, [
        {"loss": item.loss, "norm": item.gradient_norm, "tokens": item.tokens} for item in stats
    ]


@pytest.mark.slow
def test_each_rank_has_half_of_the_rows_and_of_the_parameters(
    results: list[dict[str, Any]],
) -> None:
    assert [result["place"] for result in results] == [(0, 2), (1, 2)]
    assert [result["rows"] for result in results] == [[8] * two_ranks.STEPS] * 2
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
            torch.testing.assert_close(tensor, reference[0].weights[name], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_what_each_rank_holds_makes_the_weights_whole(results: list[dict[str, Any]]) -> None:
    for name, whole in results[0]["weights"].items():
        pieces = [result["own"][name] for result in results if name in result["own"]]
        assert torch.equal(torch.cat(pieces) if whole.dim() else pieces[0], whole), name
    sizes = [sum(tensor.numel() for tensor in result["own"].values()) for result in results]
    assert sizes == [result["local"] for result in results]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # by torch 2.6 itself
def test_one_rank_goes_on_from_what_two_saved(folder: Path, results: list[dict[str, Any]]) -> None:
    engine = Fsdp2Engine(setup())
    engine.initialize()
    try:
        assert engine.load_checkpoint(folder / two_ranks.CHECKPOINT) == {"step": two_ranks.STEPS}
        for name, tensor in engine.named_weights():
            assert torch.equal(tensor, results[0]["weights"][name])
        # The optimizer's state came along: the next step is the reference's fourth.
        batch = random_batch(seed=77)
        stats = update_policy(engine, batch, loss=loss(), minibatches=MINIBATCHES)
        after = dict(engine.named_weights())
    finally:
        engine.close()
    straight_on = Reference()
    for seed in range(two_ranks.STEPS):
        filled = batch_broadcast._fill(two_ranks.odd_batch(seed), 1)
        straight_on.train([filled.slice(0, 8), filled.slice(8, 16)])
    expected = straight_on.train([batch])
    for got, want in zip(stats, expected, strict=True):
        assert got.loss == pytest.approx(want.loss, abs=1e-5)
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, straight_on.weights[name], atol=1e-5, rtol=0)


def test_a_rank_that_stays_away_is_not_waited_for_for_ever() -> None:
    port = free_port()
    with pytest.raises(RuntimeError, match=r"(?i)timed? ?out"):
        TrainerProcessGroup(
            TrainerRendezvous(host="127.0.0.1", port=port, rank=0, size=2, timeout=0.5)
        )
    assert not dist.is_initialized()
    socket.create_server(("127.0.0.1", port)).close()  # and the port is free again


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 2, "size": 2}, "rank 2 is not within a world of 2"),
        ({"rank": -1}, "rank -1 is not within a world of 1"),
        ({"size": 2}, "need a host and a port"),
        ({"size": 2, "host": "trainer-0"}, "need a host and a port"),
    ],
)
def test_a_meeting_place_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerRendezvous(**wrong)
