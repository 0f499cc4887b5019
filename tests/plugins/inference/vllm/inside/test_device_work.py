"""Weights are prepared on the worker's device, in a stream of their own, and reported when there.

The double is of torch's streams (https://docs.pytorch.org/docs/stable/notes/cuda.html): what is
enqueued in a stream happens when that is synchronized, and a thread begins on device 0. It shows
the order of calls; not that a device keeps to it.
"""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rollcall_plugins.inference.vllm.in_server import device_work, weight_transfer
from rollcall_plugins.inference.vllm.in_server.staged_file import StagedWeights
from rollcall_plugins.inference.vllm.in_server.weight_transfer import StagedWeightTransfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEVICE = torch.device("cuda", 1)


class Staged(StagedWeights):
    """One that can be referred to weakly."""


class LazyDevice:
    """Work is done when its stream is synchronized, or the whole device."""

    def __init__(self) -> None:
        self.thread = threading.local()
        self.streams: list[LazyStream] = [LazyStream(self)]
        self.thread.stream = self.streams[0]
        self.done: list[str] = []
        self.unmapped: list[list[str]] = []  # what was done when staged weights were

    def staged(self, _path: str, device: torch.device) -> Any:
        assert device == DEVICE
        assert self.thread.stream is not self.streams[0], "others would wait for what it waits for"
        found = Staged(7, ())
        weakref.finalize(found, lambda: self.unmapped.append(list(self.done)))
        return found

    def enqueue(self, work: str) -> None:
        assert self.thread.index == DEVICE.index, f"{work} is for another device"
        stream = getattr(self.thread, "stream", self.streams[0])
        stream.work.append(work)

    def set_device_index(self, device: torch.device) -> None:
        self.thread.index = device.index

    def synchronize(self, device: torch.device) -> None:
        assert device == DEVICE
        for stream in self.streams:
            stream.synchronize()


class LazyStream:
    def __init__(self, device: LazyDevice) -> None:
        self.work: list[str] = []
        self._device = device

    def __enter__(self) -> None:
        self._device.thread.stream = self

    def __exit__(self, *_: object) -> None:
        self._device.thread.stream = self._device.streams[0]

    def synchronize(self) -> None:
        self._device.done += self.work
        self.work.clear()


class LazyShadow:
    """In the place of ShadowModel."""

    def __init__(self, device: LazyDevice) -> None:
        self._device, self.agrees = device, True

    def load(self, _weights: object) -> None:
        self._device.enqueue("loaded")
        assert self._device.thread.stream is not self._device.streams[0], "others would wait for it"

    def commit(self) -> None:
        assert self._device.done == ["loaded"], "it is read before it is there"
        self._device.enqueue("committed")

    def free(self) -> None:
        assert self._device.done == ["loaded", "committed"], "it is freed while it is read"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LazyDevice:
    lazy = LazyDevice()

    def stream(of: torch.device) -> LazyStream:
        assert of == DEVICE
        lazy.streams.append(LazyStream(lazy))
        return lazy.streams[-1]

    monkeypatch.setattr(device_work, "torch", SimpleNamespace(accelerator=lazy, Stream=stream))
    monkeypatch.setattr(weight_transfer, "ShadowModel", lambda *_: LazyShadow(lazy))
    monkeypatch.setattr(weight_transfer, "read", lazy.staged)
    return lazy


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """What threads have raised."""
    found: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_value))
    yield found
    assert found == []


def transfer(worker: Callable[..., Any] = SimpleNamespace) -> StagedWeightTransfer:
    parallel, model = worker(rank=1), worker()
    config = worker(parallel_config=parallel, model_config=model)
    return StagedWeightTransfer(worker(), config, DEVICE, worker())


@pytest.mark.usefixtures("raised")
def test_weights_are_there_when_they_are_reported_and_serve_when_the_update_is_finished(
    device: LazyDevice, tmp_path: Path
) -> None:
    made = transfer()
    made.start_weight_update()
    made.update_weights({"action": "prepare", "path": "staged", "reports": str(tmp_path)})
    made.update_weights({"action": "wait", "seconds": 10})
    assert (tmp_path / "1").read_text() == ""
    assert device.done == ["loaded"]
    assert device.unmapped == [["loaded"]], "staged weights are gone before they are read"
    device.set_device_index(DEVICE)  # the worker's own thread has it
    made.finish_weight_update()
    assert device.done == ["loaded", "committed"]
    made.start_weight_update()  # waits for what is freed


@pytest.mark.usefixtures("device", "raised")
def test_what_fails_late_on_the_device_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(_: LazyStream) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(LazyStream, "synchronize", failing)
    made = transfer()
    made.update_weights({"action": "prepare", "path": "staged", "reports": str(tmp_path)})
    with pytest.raises(RuntimeError, match="illegal memory access"):
        made.update_weights({"action": "wait", "seconds": 10})
    assert "illegal memory access" in (tmp_path / "1").read_text()
