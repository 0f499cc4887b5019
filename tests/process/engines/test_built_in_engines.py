"""The repository's engines lack what their limits say, and no more: no case is skipped unseen."""

from dataclasses import fields
from functools import partial

import pytest

from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import BUILT_IN, EngineSettings
from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import CONFIG, Model, Place, refusal
from tests.process.engines.limits import CORE, Limits, limits_of

ALL_SETTINGS = {item.name for item in fields(EngineSettings)}
HEADS = {"language-model", "value", "sequence-classification"}
ENGINES = [pytest.param(name, marks=[] if name == CORE else pytest.mark.slow) for name in BUILT_IN]


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_engine_of_the_repository_states_its_limits(name: str) -> None:
    assert isinstance(limits_of(name), Limits)


def test_an_engine_of_another_distribution_has_no_limits_here() -> None:
    assert limits_of("example.my-trainer") is None


def stated(name: str) -> Limits:
    found = limits_of(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ENGINES)
def test_a_built_in_engine_runs_here_and_lacks_what_its_limits_say(place: Place, name: str) -> None:
    engine = place(name, meshes.DP2)
    assert engine.ranks.do("describe")[0]["reason"] == ""
    facts = engine.facts()
    assert facts.device in facts.devices
    assert facts.settings == BUILT_IN[name]
    assert (ALL_SETTINGS - facts.settings) | (HEADS - facts.heads) == stated(name).lacks


@pytest.mark.parametrize("name", ENGINES)
def test_a_built_in_engine_refuses_the_values_of_its_limits(
    place: Place, model: Model, name: str
) -> None:
    engine = place(name, meshes.DP2)
    for setting, value in stated(name).refuses:
        error = refusal(partial(engine.open_anyway, model("qwen3"), **{setting: value}))
        assert (error.type, error.field) == ("SpecError", f"{CONFIG}.{camel_case(setting)}")
