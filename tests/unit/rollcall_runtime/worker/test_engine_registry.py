"""Engines are found by name, and one that cannot be used says why."""

import re
from importlib.metadata import EntryPoint, distribution
from typing import Any

import pytest

from rollcall_runtime.rollout.engines.tiny_engine import TinyEngine
from rollcall_runtime.rollout.inference_engine import inference_engines
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.train_engine import train_engines
from rollcall_runtime.worker import engine_registry
from rollcall_runtime.worker.engine_registry import Availability, Registry
from rollcall_runtime.worker.errors import SpecError

GROUP = "rollcall.test_engines"


class Base:
    """What the engines of these tests derive from."""


class Good(Base):
    pass


class Unrelated:
    pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry[Base]:
    """One engine built in, and three that other distributions registered."""
    third_parties = [
        EntryPoint(name="foreign", value=f"{__name__}:Good", group=GROUP),
        EntryPoint(name="missing", value="no_such_module_here:Engine", group=GROUP),
        EntryPoint(name="wrong", value=f"{__name__}:Unrelated", group=GROUP),
    ]
    monkeypatch.setattr(engine_registry, "entry_points", lambda **_: third_parties)
    return Registry(
        kind="test engine",
        group=GROUP,
        field="spec.engine.name",
        base=Base,
        builtins={"good": f"{__name__}:Good"},
    )


def test_built_in_and_foreign_engines_are_found_by_name(registry: Registry[Base]) -> None:
    assert registry.get("good").__name__ == "Good"
    assert registry.get("foreign").__name__ == "Good"


def test_an_unknown_name_lists_what_there_is_and_why_the_rest_is_not(
    registry: Registry[Base],
) -> None:
    with pytest.raises(SpecError) as caught:
        registry.get("godo")
    assert str(caught.value) == (
        "spec.engine.name: unknown test engine 'godo' (did you mean 'good'?); "
        "available: foreign, good; not available: "
        "missing (ModuleNotFoundError: No module named 'no_such_module_here'), "
        f"wrong (TypeError: {__name__}:Unrelated is not a Base)"
    )


def test_a_missing_dependency_is_named_and_its_import_error_kept(registry: Registry[Base]) -> None:
    with pytest.raises(
        SpecError, match=r"'missing' cannot be used here: .*no_such_module"
    ) as caught:
        registry.get("missing")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_third_party_cannot_replace_a_built_in_engine(
    registry: Registry[Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    usurper = EntryPoint(name="good", value="no_such_module_here:Engine", group=GROUP)
    monkeypatch.setattr(engine_registry, "entry_points", lambda **_: [usurper])
    assert registry.survey() == (Availability("good", "built in", None),)


@pytest.mark.parametrize("order", [1, -1])
def test_a_third_party_cannot_replace_a_plugin_of_this_project(
    registry: Registry[Base], monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    plugin: Any = EntryPoint(name="fast", value=f"{__name__}:Good", group=GROUP)
    usurper: Any = EntryPoint(name="fast", value="no_such_module_here:Engine", group=GROUP)
    found = [plugin._for(distribution("rollcall")), usurper._for(distribution("torch"))]
    monkeypatch.setattr(engine_registry, "entry_points", lambda **_: found[::order])
    assert Availability("fast", "built in", None) in registry.survey()


def test_what_an_engine_needs_is_looked_for_before_it_is_made() -> None:
    def require(engine: type[Base]) -> None:
        raise ImportError(f"{engine.__name__} lacks its library")

    registry = Registry(
        kind="test engine",
        group=GROUP,
        field="spec.engine.name",
        base=Base,
        builtins={"good": f"{__name__}:Good"},
        require=require,
    )
    with pytest.raises(SpecError, match=r"'good' cannot be used here: .*Good lacks its library"):
        registry.get("good")
    (found,) = registry.survey()
    assert (found.reason, found.found) == ("ImportError: Good lacks its library", Good)


def test_the_extras_that_install_what_is_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = EntryPoint(name="mooncake", value="no_such_module_here:Engine", group=GROUP)
    monkeypatch.setattr(engine_registry, "entry_points", lambda **_: [missing])
    registry = Registry(
        kind="test engine", group=GROUP, field="spec.engine.name", base=Base, builtins={}
    )
    names = ("mooncake", "mooncake-cpu", "mooncake-cuda13", "mooncake-npu")
    extras = re.escape(f"(extra {' or '.join(f'rollcall[{name}]' for name in names)})")
    with pytest.raises(SpecError, match=f"an image that has what it needs {extras}; available"):
        registry.get("mooncake")
    with pytest.raises(SpecError, match=r"unknown test engine 'ray' \(extra rollcall\[ray\]\);"):
        registry.get("ray")
    with pytest.raises(SpecError, match=r"unknown test engine 'ra'; available"):
        registry.get("ra")


def test_an_engine_that_is_of_no_use_here_is_listed_as_such() -> None:
    registry = Registry(
        kind="test engine",
        group=GROUP,
        field="spec.engine.name",
        base=Base,
        builtins={"good": f"{__name__}:Good"},
        problem=lambda engine: f"no {engine.__name__} here",
    )
    assert registry.survey() == (Availability("good", "built in", "no Good here"),)
    with pytest.raises(SpecError, match=r"available: none; not available: good \(no Good here\)"):
        registry.get("other")


def test_the_runtime_has_its_engines() -> None:
    assert train_engines.get("fsdp2") is Fsdp2Engine
    assert inference_engines.get("tiny") is TinyEngine
