"""Versions that are copied into what serves, as vLLM's plug-in does it, under a captured graph.

The model is a few matrices. Without CUDA the double of a graph reads by address, as
tests/plugins/inference/vllm/inside/test_weight_addresses.py does.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hack.first_contact.step import Figures, run
from rollcall_plugins.inference.vllm.in_server import device_work
from rollcall_plugins.inference.vllm.in_server.weight_copies import Pair, WeightCopies

if TYPE_CHECKING:
    from collections.abc import Callable

UPDATES = 20
WIDTH, LAYERS = 512, 4
CLOSE, FAR = 0.02, 0.2  # kernels in a graph may add up in another order
LARGE = {"cpu": 1 << 26}  # bytes; elsewhere:
LARGE_ON_DEVICES = 8 << 30


def graphs(device: str) -> Figures:
    """AssertionError if a graph sees another version than the model, or an address changes."""
    place = torch.device(device, 0) if device != "cpu" else torch.device("cpu")
    model, rows = _model(0, place), torch.randn(8, WIDTH, device=place, dtype=torch.bfloat16)
    replay = _captured(model, rows)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    for version in range(1, UPDATES + 1):
        prepared = _prepared(version, model, place)
        before = replay().clone()
        prepared.apply()
        device_work.finish(place)
        expected = _model(version, place)(rows)
        assert _difference(replay(), expected) < CLOSE, f"version {version} is not in a graph"
        assert _difference(before, expected) > FAR, "versions differ enough to tell"
        assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    nbytes = LARGE.get(device, LARGE_ON_DEVICES)
    pauses = [_pause(nbytes, place) for _ in range(5)]
    return {
        "updates": UPDATES,
        "captured": device == "cuda",
        "gigabytes": nbytes / 1e9,
        "pause_ms": [round(1000 * seconds, 2) for seconds in pauses],
        "gigabytes_per_second": round(nbytes / statistics.median(pauses) / 1e9, 1),
    }


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest, of the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


def _model(seed: int, device: torch.device) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16) for _ in range(LAYERS)]
    for layer in layers:
        for parameter in layer.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).bfloat16() / 20
    return nn.Sequential(*layers).to(device).requires_grad_(requires_grad=False)


def _prepared(version: int, model: nn.Module, device: torch.device) -> WeightCopies:
    """Made in a thread and a stream of its own, as beside serving."""
    made: list[WeightCopies] = []

    def make() -> None:
        with device_work.beside_others(device):
            pairs = zip(model.modules(), _model(version, device).modules(), strict=True)
            made.append(WeightCopies([_pair(*pair) for pair in pairs], captured=True))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def _pair(serving: nn.Module, prepared: nn.Module) -> Pair:
    shadow: nn.Module = object.__new__(type(serving))
    shadow.__dict__ = {**serving.__dict__, "_parameters": prepared.__dict__["_parameters"]}
    return Pair(serving, shadow, dict(serving.__dict__))


def _captured(model: nn.Module, rows: Tensor) -> Callable[[], Tensor]:
    """Computes what `model` says of `rows`, by what was known of it when this was called."""
    if rows.device.type == "cuda":
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            for _ in range(3):
                model(rows)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out: Tensor = model(rows)

        def replay() -> Tensor:
            graph.replay()
            torch.cuda.synchronize()
            return out

        return replay
    if rows.device.type != "cpu":
        return lambda: model(rows)
    read = [[_at_address(p) for p in layer.parameters()] for layer in model.children()]

    def compute() -> Tensor:
        values = rows
        for weight, bias in read:
            values = nn.functional.linear(values, weight, bias)
        return values

    return compute


def _at_address(tensor: Tensor) -> Tensor:
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


def _pause(nbytes: int, device: torch.device) -> float:
    """Seconds to copy and compare so many bytes, in sixteen tensors."""
    serving, prepared = nn.Module(), nn.Module()
    for number in range(16):
        for module, value in ((serving, 1.0), (prepared, 2.0)):
            values = torch.full((nbytes // 32,), value, dtype=torch.bfloat16, device=device)
            module.register_parameter(f"p{number}", nn.Parameter(values, requires_grad=False))
    copies = WeightCopies([_pair(serving, prepared)], captured=True)
    device_work.finish(device)
    began = time.monotonic()
    copies.apply()
    device_work.finish(device)
    return time.monotonic() - began


if __name__ == "__main__":
    run(graphs)
