"""checkpoint-engine's P2PStore, and what it asks of a device where there is no accelerator.

The store starts Mooncake's TransferEngine on the pod's address and registers host memory with it.
Its own read is not used: it blocks without a pause, cannot be given up, and reports a failure while
the transport may still write into the buffer (docs/weight-sync.md has the figures). Reads are asked
of its TransferEngine instead, as engine `mooncake` does.
"""

import ctypes
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

if not __debug__:
    raise ImportError("checkpoint-engine does its work in assertions, which python -O leaves out")

import torch
from checkpoint_engine import device_utils, p2p_store
from loguru import logger

_RANK = "RANK"
_starting = threading.Lock()
_names = itertools.count()


class _OneDevice:
    """The module of a device type; the process has one, its CPU."""

    @staticmethod
    def device_count() -> int:
        return 1


@dataclass(frozen=True, slots=True)
class HostDevices:
    """What P2PStore asks of a device manager: a protocol of Mooncake's, and RDMA devices' names."""

    transfer_engine_protocol: str
    names: str = ""
    device_type: ClassVar[str] = "cpu"
    device_module: ClassVar[type[_OneDevice]] = _OneDevice

    def rdma_device(self, rank: int) -> str:  # noqa: ARG002 - all ranks use the same
        """The devices to use, all if empty."""
        return self.names


def devices(kind: str, *, protocol: str, names: str) -> Any:
    """A device manager for workers with this torch device type.

    With protocol "auto" CUDA and NPU workers get checkpoint-engine's own DeviceManager, which
    decides about protocol and devices by itself; that was never run. Others get TCP. Raises
    TypeError when the device type is there, but not to be used.
    """
    if protocol == "auto" and kind in {"cuda", "npu"}:
        manager = device_utils.DeviceManager()
        if kind == "npu":  # its transport asks for the device of the process
            module = manager.device_module
            module.set_device(int(os.environ.get(_RANK, "0")) % module.device_count())
        return manager
    return HostDevices("tcp" if protocol == "auto" else protocol, names)


class HostStore:
    """A P2PStore that listens on `address`. Raises RuntimeError when it does not start.

    Its constructor tries eight times, which can take 16 s.
    """

    def __init__(self, address: str, manager: Any) -> None:
        logger.disable("checkpoint_engine")  # it tells of each registration
        try:
            with _surroundings(address):
                self._store = p2p_store.P2PStore(manager)
        except (RuntimeError, AssertionError, TypeError) as error:
            raise RuntimeError(
                f"checkpoint-engine's P2PStore did not start with protocol "
                f"{manager.transfer_engine_protocol!r} on {address}: {error}"
            ) from error

    @property
    def transfers(self) -> Any:
        """Its TransferEngine."""
        return self._store.engine

    @property
    def address(self) -> str:
        """Where others read from."""
        return str(self._store.addr)

    @property
    def registered(self) -> int:
        """How many pieces of memory are registered."""
        return len(self._store.named_tensors)

    def register(self, address: int, nbytes: int) -> str:
        """Let peers read this memory, which must outlive it; returns its name. RuntimeError."""
        name = f"buffer-{next(_names)}"
        memory = (ctypes.c_char * nbytes).from_address(address)
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        try:
            self._store.register_named_tensors({name: tensor})
        except AssertionError as error:
            self._store.named_tensors.pop(name, None)
            raise RuntimeError(f"P2PStore cannot register {nbytes} bytes of memory") from error
        return name

    def unregister(self, name: str) -> None:
        """The memory is about to go. RuntimeError."""
        try:
            self._store.unregister_named_tensors([name])
        except AssertionError as error:
            raise RuntimeError(f"P2PStore cannot unregister {name}") from error
        finally:
            self._store.named_tensors.pop(name, None)


@contextmanager
def _surroundings(address: str) -> Iterator[None]:
    """P2PStore asks the default route for its address, and the environment for a rank."""
    with _starting:
        asked, ranked = p2p_store.get_ip, _RANK in os.environ
        p2p_store.get_ip = lambda: address
        os.environ.setdefault(_RANK, "0")
        try:
            yield
        finally:
            p2p_store.get_ip = asked
            if not ranked:
                del os.environ[_RANK]
