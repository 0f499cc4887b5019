"""Weights are prepared beside a model that serves, and then served, all or nothing."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from vllm._custom_ops import CPUDNNLGEMMHandler
from vllm.model_executor.model_loader.reload import layerwise

from rollcall_plugins.inference.vllm.in_server.weight_transfer import LoadedOtherwiseError
from tests.plugins.inference.vllm.inside.served_model import Output, ServedModel, reference
from tests.plugins.inference.vllm.inside.small_volume import filled, mounted

CLOSE = 1e-4  # of log-probabilities in float32: vLLM's kernels add up in another order


def assert_close(served: Output, expected: Output) -> None:
    for (tokens, logprobs), (right, expected_logprobs) in zip(served, expected, strict=True):
        assert tokens == right
        assert logprobs == pytest.approx(expected_logprobs, abs=CLOSE)


@pytest.fixture(autouse=True)
def _begin_with_the_first(served: ServedModel) -> None:
    served.update(served.first, version=1)


def test_an_update_serves_the_new_weights(served: ServedModel) -> None:
    assert_close(served.greedy(), reference(served.first))
    served.update(served.second, version=2)
    assert_close(served.greedy(), reference(served.second))


def test_the_same_weights_give_the_same_bits_again(served: ServedModel) -> None:
    before = served.greedy()
    served.update(served.second, version=2)
    served.update(served.first, version=3)
    assert served.greedy() == before


def test_what_is_prepared_is_not_served(served: ServedModel) -> None:
    before = served.greedy()
    served.stage(served.second.named_parameters(), version=2)
    assert served.greedy() == before


@pytest.mark.parametrize("failing", [False, True])
def test_updates_leave_no_weights_behind(served: ServedModel, *, failing: bool) -> None:
    def update(version: int) -> None:
        served.update(served.second, version=version)
        if failing:
            weights = dict(served.second.named_parameters())
            weights["model.layers.9.mlp.up_proj.weight"] = torch.nn.Parameter(torch.zeros(3, 128))
            with pytest.raises((ValueError, KeyError)):
                served.stage(weights.items(), version=version)

    update(2)
    served.begin()  # waits until what served before is freed
    gc.collect()
    before = weights_in_memory()
    gc.disable()  # where little is allocated it hardly ever runs
    try:
        for version in range(3, 7):
            update(version)
        served.begin()
    finally:
        gc.enable()
    assert weights_in_memory() == before


def weights_in_memory() -> tuple[int, int]:
    """Bytes of all tensors of this process, and the number of weights that oneDNN packed."""
    found = gc.get_objects()
    tensors = [thing for thing in found if issubclass(type(thing), torch.Tensor)]
    nbytes = sum({t.data_ptr(): t.nbytes for t in tensors if t.device.type == "cpu"}.values())
    return nbytes, sum(type(thing) is CPUDNNLGEMMHandler for thing in found)


@pytest.mark.parametrize("fault", ["missing", "missing_part", "shape", "unknown"])
def test_weights_that_do_not_fit_change_nothing(served: ServedModel, fault: str) -> None:
    before = served.greedy()
    weights = dict(served.second.named_parameters())
    if fault == "missing":
        del weights["model.layers.1.input_layernorm.weight"]
    elif fault == "missing_part":  # vLLM keeps q, k and v in one tensor
        del weights["model.layers.1.self_attn.k_proj.weight"]
    elif fault == "shape":
        weights["model.layers.1.mlp.up_proj.weight"] = torch.nn.Parameter(torch.zeros(3, 128))
    else:
        weights["model.layers.9.mlp.up_proj.weight"] = torch.nn.Parameter(torch.zeros(3, 128))
    with pytest.raises((ValueError, RuntimeError, AssertionError, KeyError)):
        served.stage(weights.items(), version=2)
    assert served.greedy() == before
    served.update(served.second, version=3)
    assert_close(served.greedy(), reference(served.second))


def test_a_finish_without_prepared_weights_changes_nothing(served: ServedModel) -> None:
    before = served.greedy()
    served.begin()
    with pytest.raises(RuntimeError, match="no weights are prepared"):
        served.finish()
    assert served.greedy() == before


def test_a_damaged_file_changes_nothing(
    served: ServedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = served.greedy()
    path = tmp_path_factory.mktemp("damaged") / "weights"
    path.write_bytes(b"\x10" + bytes(7) + b"no JSON at all..")
    served.begin()
    served.act(action="prepare", path=str(path))
    with pytest.raises(ValueError, match="malformed"):
        served.act(action="wait", seconds=10)
    assert served.greedy() == before


def test_a_full_disk_does_not_keep_a_failure_from_being_reported(
    served: ServedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "weights"
    path.write_bytes(b"no weights")
    volume = tmp_path_factory.mktemp("volume")
    with mounted(volume), filled(volume):
        served.begin()
        served.act(action="prepare", path=str(path), reports=str(volume))
        with pytest.raises(ValueError, match="the description has"):
            served.act(action="wait", seconds=10)
        assert (volume / "0").exists()


def test_what_the_loaders_put_into_the_model_is_compared_with_what_came(
    served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, loaded = served.greedy(), layerwise.get_numel_loaded

    def without_keys(loader: Any, given: Any) -> Any:
        """A loader of queries, keys and values that puts zeros in the place of keys."""
        found = loaded(loader, given)
        if given.arguments.get("loaded_shard_id") == "k":
            given.arguments["loaded_weight"] = torch.zeros_like(given.arguments["loaded_weight"])
        return found

    with monkeypatch.context() as faulty:
        faulty.setattr(layerwise, "get_numel_loaded", without_keys)
        with pytest.raises(LoadedOtherwiseError, match="other numbers into the model than version"):
            served.stage(served.second.named_parameters(), version=2)
    assert served.greedy() == before
    served.update(served.second, version=3)
    assert_close(served.greedy(), reference(served.second))
