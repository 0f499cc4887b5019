"""Which device, driver and libraries there are."""

from __future__ import annotations

import platform
import tomllib
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from hack.first_contact.step import Figures, run

_PACKAGES = ("torch", "transformers", "vllm", "triton", "nvidia-nccl-cu13", "torch-npu", "ray")
_ROOT = Path(__file__).parents[3]


def versions(device: str) -> Figures:
    """RuntimeError if torch does not see the device."""
    if device != "cpu":
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        if found is None or found.type != device:
            raise RuntimeError(f"torch {torch.__version__} sees {found or 'no device'}")
    return {
        "python": platform.python_version(),
        "devices": _devices(device),
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in _PACKAGES},
        "transports": {name: _lacks(where) for name, where in _transports().items()},
    }


def _transports() -> dict[str, str]:
    """Where the class of each is. On a bare machine the plug-ins are there, but not installed."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project["entry-points"]["rollcall.sync_engines"]
    return {"gloo": "rollcall_runtime.sync.engines.gloo:GlooEngine", **found}


def _devices(device: str) -> list[str]:
    if device != "cuda":
        return [device]
    count = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(number) for number in range(count)]
    return [f"{each.name}, {each.total_memory / 2**30:.0f} GiB" for each in properties]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _lacks(where: str) -> str:
    """What a transport lacks here; empty if it can be used."""
    module, name = where.split(":")
    try:
        getattr(import_module(module), name).require_library()
    except (ImportError, OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


if __name__ == "__main__":
    run(versions)
