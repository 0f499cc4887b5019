"""vLLM gets as much of a card as leaves an update its second set of weights."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch

from rollcall_plugins.inference.vllm import serving_engine
from rollcall_plugins.inference.vllm.card_memory import (
    LEAST_CACHE,
    SPARE,
    NoRoomError,
    utilization,
    weight_bytes,
)
from rollcall_plugins.inference.vllm.engine import VllmEngine
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


@pytest.mark.parametrize("card", [24 * GIB, 80 * GIB, 141 * GIB])
@pytest.mark.parametrize("weights", [GIB, 8 * GIB, 10 * GIB])
def test_a_second_set_fits_beside_what_vllm_takes_and_the_first_into_it(
    card: int, weights: int
) -> None:
    share = utilization(card, weights, beside=1, wanted=0)
    assert card * (1 - share) >= weights
    assert card * share >= weights + LEAST_CACHE - card / 100


def test_of_a_large_card_vllm_takes_no_more_than_by_default() -> None:
    assert utilization(80 * GIB, GIB, beside=1, wanted=0) == 0.92
    assert utilization(80 * GIB, 8 * GIB, beside=1, wanted=0) == 0.88


def test_what_does_not_fit_twice_is_refused_with_the_numbers() -> None:
    problem = (
        r"needs 2 sets of the weights: 2 x 14\.0 GiB and some 2\.5 GiB more "
        r"do not fit into a card of 24\.0 GiB; "
        "raise tensorParallelSize"
    )
    with pytest.raises(NoRoomError, match=problem):
        utilization(24 * GIB, 14 * GIB, beside=1, wanted=0)
    least = 2 * 14 * GIB + SPARE + LEAST_CACHE
    assert utilization(least, 14 * GIB, beside=1, wanted=0) == pytest.approx(0.49)


def test_a_users_share_holds_where_it_leaves_room() -> None:
    assert utilization(80 * GIB, 8 * GIB, beside=1, wanted=0.5) == 0.5
    problem = (
        r"gpuMemoryUtilization 0\.95 of 80\.0 GiB leaves no room .* beside vLLM, 1 x 8\.0 GiB; "
        r"make it 0\.88"
    )
    with pytest.raises(NoRoomError, match=problem):
        utilization(80 * GIB, 8 * GIB, beside=1, wanted=0.95)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("auto", 2)])
def test_weights_count_as_they_are_served_by_each_rank(dtype: str, size: int) -> None:
    assert weight_bytes([(4, 10), (8,)], dtype=dtype, ranks=2) == 48 * size / 2


class _NotStartedError(Exception):
    """The arguments are known."""


def made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, card: int, copies: int = 0, **config: Any
) -> list[str]:
    """The arguments of vLLM on such a card."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(serving_engine, "card_bytes", lambda: card)
    engine = VllmEngine(model=str(write_tiny_model(folder / "model")), config=config)
    engine.staged_copies = copies
    with (
        patch.object(engine._server, "start", side_effect=_NotStartedError),
        pytest.raises(_NotStartedError),
    ):
        asyncio.run(engine.start())
    return list(engine._server.command)


def test_the_engine_gives_vllm_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(tmp_path, monkeypatch, card=2 * SPARE, dtype="float32")
    shapes = open_model(str(tmp_path / "model")).weights().shapes.values()
    weights = weight_bytes(shapes, dtype="float32", ranks=1)
    share = utilization(2 * SPARE, weights, beside=1, wanted=0)
    assert f"--gpu-memory-utilization={share:g}" in found
    assert "--enforce-eager" not in found


def test_a_share_without_room_for_updates_is_refused_before_vllm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match=r"engine\.config: gpuMemoryUtilization 0\.9 "):
        made(tmp_path, monkeypatch, card=2 * SPARE, gpuMemoryUtilization="0.9")


def test_versions_that_are_received_on_the_card_have_their_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert utilization(80 * GIB, 8 * GIB, beside=3, wanted=0) == 0.68
    found = made(tmp_path, monkeypatch, card=2 * SPARE, copies=2, dtype="float32")
    shapes = open_model(str(tmp_path / "model")).weights().shapes.values()
    weights = weight_bytes(shapes, dtype="float32", ranks=1)
    share = utilization(2 * SPARE, weights, beside=3, wanted=0)
    assert f"--gpu-memory-utilization={share:g}" in found
    with pytest.raises(NoRoomError, match=r"needs 4 sets .* or set weightSync\.staging to Host"):
        utilization(24 * GIB, 6 * GIB, beside=3, wanted=0)


@pytest.mark.parametrize(("ranks", "device"), [(1, "cuda"), (2, "cpu")])
def test_a_version_is_received_on_the_card_if_there_is_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, device: str
) -> None:
    config = {"tensorParallelSize": ranks}
    engine = VllmEngine(model=str(write_tiny_model(tmp_path / "model")), config=config)
    assert engine.device == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert engine.device == device
