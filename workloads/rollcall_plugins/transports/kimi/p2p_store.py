"""checkpoint-engine's P2PStore, and a device manager for it where there is no accelerator.

The store starts Mooncake's TransferEngine on the pod's address and registers host memory with it.
Its own read is not used: it polls without a pause, cannot be abandoned, and reports a failure while
the transport may still write into the buffer (docs/weight-sync/internals.md says more). Reads go to
its TransferEngine instead, as in engine `mooncake`.
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

from rollcall_protocol.wire.addresses import host_port

_RANK = "RANK"
_starting = threading.Lock()
_names = itertools.count()


class _OneDevice:
    """The module of a device type; the process has one, its CPU."""

    @staticmethod
    def device_count() -> int:
        return 1


@dataclass(frozen=True, slots=True)
class HostDeviceManager:
    """What P2PStore reads of a device manager: Mooncake's protocol, and RDMA devices' names."""

    transfer_engine_protocol: str
    names: str = ""
    device_type: ClassVar[str] = "cpu"
    device_module: ClassVar[type[_OneDevice]] = _OneDevice

    def rdma_device(self, rank: int) -> str:  # noqa: ARG002 - all ranks use the same
        """The devices to use, all if empty."""
        return self.names


def device_manager(kind: str, *, protocol: str, names: str) -> Any:
    """A device manager for workers with this torch device type.

    With protocol "auto" CUDA and NPU workers get checkpoint-engine's own DeviceManager, which
    chooses protocol and devices by itself; that was never run. Others get TCP. Raises TypeError
    when the accelerator is present but cannot be used.
    """
    if protocol == "auto" and kind in {"cuda", "npu"}:
        manager = device_utils.DeviceManager()
        if kind == "npu":  # its transport reads the device of the process
            module = manager.device_module
            module.set_device(int(os.environ.get(_RANK, "0")) % module.device_count())
        return manager
    return HostDeviceManager("tcp" if protocol == "auto" else protocol, names)


class HostP2PStore:
    """A P2PStore that listens on `address`. Raises RuntimeError when it does not start.

    Its constructor tries eight times, which can take 16 s.
    """

    def __init__(self, address: str, manager: Any) -> None:
        logger.disable("checkpoint_engine")  # it logs each registration
        try:
            with _address_and_rank(address):
                self._store = p2p_store.P2PStore(manager)
        except (RuntimeError, AssertionError, TypeError) as error:
            raise RuntimeError(
                f"checkpoint-engine's P2PStore did not start with protocol "
                f"{manager.transfer_engine_protocol!r} on {address}: {error}"
            ) from error

    @property
    def transfers(self) -> Any:
        """Mooncake's TransferEngine of the store."""
        return self._store.engine

    @property
    def address(self) -> str:
        """Where peers read from, as host:port."""
        return host_port(self._store.ip, self._store.port)

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
        """The memory is about to be freed. RuntimeError."""
        try:
            self._store.unregister_named_tensors([name])
        except AssertionError as error:
            raise RuntimeError(f"P2PStore cannot unregister {name}") from error
        finally:
            self._store.named_tensors.pop(name, None)


@contextmanager
def _address_and_rank(address: str) -> Iterator[None]:
    """Give P2PStore this address instead of the default route's, and a rank by RANK."""
    with _starting:
        get_ip, ranked = p2p_store.get_ip, _RANK in os.environ
        p2p_store.get_ip = lambda: address
        os.environ.setdefault(_RANK, "0")
        try:
            yield
        finally:
            p2p_store.get_ip = get_ip
            if not ranked:
                del os.environ[_RANK]
