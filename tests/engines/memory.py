"""How much memory a rank takes, for tests that compare two ways of training."""

from __future__ import annotations

import ctypes
import gc
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import device

_STATUS = Path("/proc/self/status")
_KIB = 1024


@dataclass(slots=True)
class Growth:
    """Known when the measured body has ended."""

    bytes: int = 0


@contextmanager
def peak() -> Iterator[Growth]:
    """How far the resident memory of this process rises above where it was, while the body runs."""
    grown = Growth()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else the body would reuse what was freed before
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
    before = _kilobytes("VmRSS")
    yield grown
    grown.bytes = (_kilobytes("VmHWM") - before) * _KIB


def allocated(device: device) -> int:
    """Bytes of an accelerator's memory that tensors take; 0 on a CPU, whose tensors torch does not
    count.
    """
    if device.type == "cpu":
        return 0
    gc.collect()
    return int(torch.get_device_module(device).memory_allocated(device))


def _kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{_STATUS} has no {name}")
    return int(found[1])
