"""The built-in engines lack what the tables say, and no more: no case is skipped unseen."""

from dataclasses import fields
from functools import partial

import pytest

from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import BUILT_IN, EngineSettings
from tests.process.engines import meshes
from tests.process.engines.built_in_limits import LACKS, REFUSES
from tests.process.engines.conftest import CORE
from tests.process.engines.engine_on_ranks import CONFIG, Model, Place, refusal

ALL_SETTINGS = {item.name for item in fields(EngineSettings)}
HEADS = {"language-model", "value", "sequence-classification"}
ENGINES = [pytest.param(name, marks=[] if name == CORE else pytest.mark.slow) for name in LACKS]


def test_every_built_in_engine_is_in_the_tables() -> None:
    assert LACKS.keys() == BUILT_IN.keys()
    assert REFUSES.keys() <= BUILT_IN.keys()


@pytest.mark.parametrize("name", ENGINES)
def test_a_built_in_engine_runs_here_and_lacks_what_the_table_says(place: Place, name: str) -> None:
    engine = place(name, meshes.DP2)
    assert engine.ranks.do("describe")[0]["reason"] == ""
    facts = engine.facts()
    assert facts.device in facts.devices
    assert facts.settings == BUILT_IN[name]
    assert (ALL_SETTINGS - facts.settings) | (HEADS - facts.heads) == LACKS[name]


@pytest.mark.parametrize("name", ENGINES)
def test_a_built_in_engine_refuses_the_values_of_the_table(
    place: Place, model: Model, name: str
) -> None:
    engine = place(name, meshes.DP2)
    for setting, value in REFUSES.get(name, ()):
        error = refusal(partial(engine.open_anyway, model("qwen3"), **{setting: value}))
        assert (error.type, error.field) == ("SpecError", f"{CONFIG}.{camel_case(setting)}")
