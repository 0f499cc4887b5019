"""Engines by name and device; errors say what there is and why the rest is not."""

import pytest

from rollcall_runtime.errors import SpecError
from rollcall_runtime.sync import registry
from rollcall_runtime.sync.gloo import GlooEngine
from rollcall_runtime.sync.registry import create_engine, engines


def test_auto_is_gloo_on_a_cpu() -> None:
    assert isinstance(create_engine("auto", device="cpu"), GlooEngine)


def test_an_engine_is_found_by_name() -> None:
    assert isinstance(create_engine("gloo", device="cpu"), GlooEngine)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(SpecError, match=r"unknown weight-sync engine 'glue'.*available: gloo"):
        create_engine("glue", device="cpu")


def test_auto_on_a_device_without_an_engine_says_so() -> None:
    with pytest.raises(SpecError, match="available: gloo"):
        create_engine("auto", device="tpu")


def test_an_engine_of_another_device_is_refused() -> None:
    with pytest.raises(SpecError, match="'gloo' serves cpu, not 'npu'"):
        create_engine("gloo", device="npu")


def test_a_missing_dependency_keeps_its_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = registry.make_registry({"warp": "no_such_package.warp:Engine"})
    monkeypatch.setattr(registry, "_REGISTRY", missing)
    with pytest.raises(SpecError, match="No module named 'no_such_package'"):
        create_engine("warp", device="cpu")


def test_every_engine_says_whether_it_can_be_used() -> None:
    assert [(engine.name, engine.reason) for engine in engines()] == [("gloo", None)]
