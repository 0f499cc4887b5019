"""Engines by name and device; errors say what there is and why the rest is not."""

import importlib
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from rollcall_runtime.sync import registry
from rollcall_runtime.sync.engine import EngineKind
from rollcall_runtime.sync.engines.gloo import GlooEngine
from rollcall_runtime.sync.registry import (
    EngineInfo,
    create_engine,
    engines,
    library_version,
)
from rollcall_runtime.worker import engine_registry
from rollcall_runtime.worker.errors import SpecError


def test_auto_is_gloo_on_a_cpu() -> None:
    assert isinstance(create_engine("auto", device="cpu"), GlooEngine)


def test_an_engine_is_found_by_name() -> None:
    assert isinstance(create_engine("gloo", device="cpu"), GlooEngine)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(SpecError, match=r"unknown weight-sync engine 'glue'.*available: gloo"):
        create_engine("glue", device="cpu")


def test_auto_is_gloo_on_a_device_without_an_engine_of_its_own() -> None:
    assert isinstance(create_engine("auto", device="tpu"), GlooEngine)


def test_an_engine_for_cpus_serves_workers_with_other_devices_too() -> None:
    assert isinstance(create_engine("gloo", device="npu"), GlooEngine)


class CudaEngine(GlooEngine):
    """What needs a GPU."""

    devices = frozenset({"cuda"})


def test_an_engine_of_another_device_is_refused_and_those_that_fit_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builtins = registry._BUILTINS | {"nccl": f"{__name__}:CudaEngine"}
    monkeypatch.setattr(registry, "_REGISTRY", registry.make_registry(builtins))
    with pytest.raises(SpecError, match="'nccl' serves cuda, not 'cpu'; available: gloo"):
        create_engine("nccl", device="cpu")
    assert isinstance(create_engine("auto", device="cuda"), CudaEngine)


class WarpEngine(GlooEngine):
    """What needs a package."""

    kind = EngineKind.PEER
    devices = frozenset({"cpu", "cuda"})
    library = "no_such_package"

    @classmethod
    def require_library(cls) -> None:
        importlib.import_module("no_such_package")


@pytest.fixture
def without_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside gloo an engine whose library is missing, and one whose module lacks something."""
    monkeypatch.setattr(engine_registry, "entry_points", lambda **_: ())
    added = {"warp": f"{__name__}:WarpEngine", "weft": "no_such_package.weft:Engine"}
    monkeypatch.setattr(registry, "_REGISTRY", registry.make_registry(registry._BUILTINS | added))


@pytest.mark.usefixtures("without_warp")
def test_a_missing_dependency_keeps_its_import_error() -> None:
    with pytest.raises(SpecError, match="No module named 'no_such_package'"):
        create_engine("warp", device="cpu")


@pytest.mark.usefixtures("without_warp")
def test_an_engine_is_described_even_when_it_cannot_be_imported() -> None:
    gloo, warp, weft = engines()
    assert (gloo.name, gloo.available, gloo.reason) == ("gloo", True, None)
    assert gloo.version == version("torch")
    assert warp == EngineInfo(
        name="warp",
        kind=EngineKind.PEER,
        devices=("cpu", "cuda"),
        available=False,
        reason="ModuleNotFoundError: No module named 'no_such_package'",
        version=None,
        origin="built in",
    )
    assert (weft.name, weft.kind, weft.devices, weft.available) == ("weft", None, (), False)


# --- versions of libraries -----------------------------------------------------------------------

Install = Callable[[str, str, str], None]
"""Takes a distribution's name, its version and a file that it has."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes distributions; no others can be seen."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def add(name: str, number: str, file: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{number}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {number}\n")
        (folder / "RECORD").write_text(f"{file},,\n")
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    return add


@pytest.mark.parametrize("kind", ["", "-non-cuda", "-npu", "-cuda13"])
def test_a_librarys_version_is_found_whatever_its_distribution_is_called(
    install: Install, kind: str
) -> None:
    install(f"mooncake-transfer-engine{kind}", "0.3.13", "mooncake/__init__.py")
    assert library_version("mooncake") == "0.3.13"


@pytest.mark.parametrize("name", ["nvidia-nccl-cu12", "nvidia-nccl-cu13"])
def test_other_distributions_in_a_shared_package_are_not_the_library(
    install: Install, name: str
) -> None:
    install("nvidia-cublas", "13.1", "nvidia/cublas/__init__.py")
    assert library_version("nvidia.nccl") is None
    install(name, "2.29.7", "nvidia/nccl/__init__.py")
    assert library_version("nvidia.nccl") == "2.29.7"


def test_two_distributions_of_one_library_are_both_shown(install: Install) -> None:
    install("mooncake-transfer-engine", "0.3.14", "mooncake/__init__.py")
    install("mooncake-transfer-engine-npu", "0.3.13", "mooncake/__init__.py")
    assert library_version("mooncake") == "0.3.13, 0.3.14"


def test_a_library_that_is_not_installed_has_no_version(install: Install) -> None:
    install("mooncake-tools", "1", "mooncake_tools/shell.py")
    assert library_version("mooncake") is None
