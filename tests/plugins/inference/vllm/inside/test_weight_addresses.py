"""What serves stays at its address: a captured graph reads each version, and no other.

No graph is captured on a CPU. The double reads memory as one does that was captured before: the
addresses, layouts and dtypes of all weights, and nothing else of the model (CUDA's graphs are said
to in https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). vLLM has plain matrix
products here, whose weights are tensors as on an accelerator; by default it packs them on a CPU.
"""

from __future__ import annotations

import ctypes
import hashlib
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from vllm.model_executor.layers import utils

from tests.plugins.inference.vllm.inside.conftest import MADE
from tests.plugins.inference.vllm.inside.served_model import ServedModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor, nn

UPDATES = 20

Graph = dict[str, tuple[int, int]]  # address and bytes of each weight
Digests = dict[str, str]


def weights(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers that have numbers, and tensors that vLLM keeps beside them."""
    found: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    found |= dict(model.named_buffers(remove_duplicate=False))
    for name, module in model.named_modules():
        for at, value in vars(module).items():
            several = value if isinstance(value, tuple) else (value,)
            own = [tensor for tensor in several if isinstance(tensor, torch.Tensor)]
            found |= {f"{name}.{at}.{number}": tensor for number, tensor in enumerate(own)}
    return {name: tensor for name, tensor in found.items() if tensor.numel()}


def capture(model: nn.Module) -> Graph:
    """What a graph knows of the weights."""
    found = weights(model)
    assert all(tensor.is_contiguous() for tensor in found.values())
    return {name: (tensor.data_ptr(), tensor.nbytes) for name, tensor in found.items()}


def replay(graph: Graph, _model: nn.Module) -> Digests:
    """Of all that a graph reads."""
    return {name: _digest(address, size) for name, (address, size) in graph.items()}


def numbers(model: nn.Module) -> Digests:
    """Of all weights, as the model itself finds them."""
    return replay(capture(model), model)


def _digest(address: int, size: int) -> str:
    return hashlib.blake2b((ctypes.c_char * size).from_address(address)).hexdigest()


@contextmanager
def plain_products() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "dispatch_cpu_unquantized_gemm", _plain)
        yield


def _plain(layer: Any, *, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


@pytest.fixture(scope="module", params=list(MADE))
def versions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServedModel, list[Digests]]]:
    """A model that serves, and what a server has that has just loaded its versions 0 and 1."""
    make, fresh = MADE[request.param], []
    models = [make(seed) for seed in range(2)]
    more: dict[str, Any] = {"enforce_eager": False, "compilation_config": {"mode": 0}}
    with plain_products():
        for number in (1, 0):
            folder: Path = tmp_path_factory.mktemp("model")
            models[number].save_pretrained(folder)
            served = ServedModel(folder, first=models[0], second=models[1], **more)
            fresh.append(served.ask(numbers)[0])
            if number:
                served.close()
        yield served, fresh[::-1]
        served.close()


def update(served: ServedModel, version: int) -> None:
    served.update((served.first, served.second)[version % 2], version=version)


def test_all_stays_where_it_is_and_a_graph_reads_what_a_fresh_server_has_loaded(
    versions: tuple[ServedModel, list[Digests]],
) -> None:
    served, fresh = versions
    (graph,) = served.ask(capture)
    assert served.ask(numbers) == [fresh[0]]
    assert fresh[0] != fresh[1]
    for version in range(1, UPDATES + 1):
        update(served, version)
        assert served.ask(capture) == [graph]
        assert served.ask(partial(replay, graph)) == [fresh[version % 2]]


def test_a_graph_that_was_captured_after_an_update_reads_the_later_ones(
    versions: tuple[ServedModel, list[Digests]],
) -> None:
    served, fresh = versions
    update(served, 1)
    (graph,) = served.ask(capture)
    update(served, 2)
    assert served.ask(partial(replay, graph)) == [fresh[0]]


def test_what_is_prepared_is_in_no_graph(versions: tuple[ServedModel, list[Digests]]) -> None:
    served, fresh = versions
    update(served, 2)
    (graph,) = served.ask(capture)
    served.stage(served.second.named_parameters(), version=3)
    assert served.ask(partial(replay, graph)) == [fresh[0]]
    served.finish()
    assert served.ask(partial(replay, graph)) == [fresh[1]]


def test_a_graph_outlasts_sleep(versions: tuple[ServedModel, list[Digests]]) -> None:
    served, fresh = versions
    (graph,) = served.ask(capture)
    served.sleep_and_wake()
    update(served, 1)
    assert served.ask(partial(replay, graph)) == [fresh[1]]


def test_adapters_come_into_memory_that_is_there_and_change_nothing_else(tmp_path: Path) -> None:
    make = MADE["tied"]
    make(0).save_pretrained(tmp_path / "model")
    more = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    served = ServedModel(tmp_path / "model", first=make(0), second=make(1), **more)
    try:
        (graph,) = served.ask(capture)
        slots = {name for name in graph if "lora" in name}
        assert slots
        (before,) = served.ask(partial(replay, graph))
        for number in (1, 2):
            write_adapter(tmp_path / str(number), make(0), seed=number)
            served.adapt(tmp_path / str(number), number=number)
            assert served.ask(capture) == [graph]
            (after,) = served.ask(partial(replay, graph))
            changed = {name for name in graph if after[name] != before[name]}
            assert changed
            assert changed <= slots
            before = after
    finally:
        served.close()


def write_adapter(folder: Path, model: Any, *, seed: int) -> None:
    torch.manual_seed(seed)
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(str(folder))


def test_on_all_ranks_what_is_not_packed_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks are processes, in which vLLM packs weights as it does on CPUs."""
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # they get functions as pickles
    make = MADE["tied"]
    make(0).save_pretrained(tmp_path)
    served = ServedModel(tmp_path, first=make(0), second=make(1), tensor_parallel_size=2)
    try:
        graphs, fresh = served.ask(capture), served.ask(numbers)
        assert len(graphs) == 2
        for version in range(1, 5):
            update(served, version)
            assert served.ask(capture) == graphs
            assert (served.ask(numbers) == fresh) == (version % 2 == 0)
    finally:
        served.close()
