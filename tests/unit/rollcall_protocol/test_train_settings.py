"""Settings of training engines: which engine has which, and whether a device mesh fits."""

from typing import Any

import pytest

from rollcall_protocol.settings_reader import SettingError, read_settings
from rollcall_protocol.train_settings import (
    BUILT_IN,
    EngineSettings,
    check_known,
    check_mesh,
    lora_targets,
)


def test_a_setting_that_the_engine_lacks_is_named_with_the_engines_that_have_it() -> None:
    with pytest.raises(SettingError) as caught:
        check_known(EngineSettings(packing=True), {"precision"}, engine="mine")
    assert caught.value.key == "packing"
    assert caught.value.problem.startswith(
        "engine mine does not have this setting; these have it: fsdp, fsdp2"
    )


def test_a_setting_at_its_default_is_no_matter_to_an_engine_that_lacks_it() -> None:
    check_known(EngineSettings(packing=False), set(), engine="mine")


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        (EngineSettings(), 3),
        (EngineSettings(tensor_parallel=2), 4),
        (EngineSettings(tensor_parallel=2, replicas=2), 8),
    ],
)
def test_a_mesh_fits_into_a_multiple_of_its_size(settings: EngineSettings, ranks: int) -> None:
    check_mesh(settings, ranks=ranks)


@pytest.mark.parametrize(
    ("settings", "ranks", "problem"),
    [
        (
            EngineSettings(tensor_parallel=2),
            1,
            "tensorParallel 2 does not divide the number of ranks, 1",
        ),
        (
            EngineSettings(tensor_parallel=2, replicas=3),
            4,
            "tensorParallel 2 x replicas 3 = 6 does not divide the number of ranks, 4",
        ),
    ],
)
def test_another_mesh_is_refused(settings: EngineSettings, ranks: int, problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        check_mesh(settings, ranks=ranks)
    assert str(caught.value) == problem


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_engines_know_only_settings_that_there_are(name: str) -> None:
    assert BUILT_IN[name] <= set(EngineSettings.__dataclass_fields__)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"loraRank": 513}, "loraRank must be at most 512"),
        ({"loraExport": "adapter"}, "loraRank must be at least 1 when loraExport is adapter"),
        ({"loraRank": 8, "loraExport": "both"}, "loraExport must be one of merged, adapter"),
        ({"loraRank": 8, "loraTargets": ""}, "loraTargets must be names of linear layers"),
        ({"loraRank": 8, "loraTargets": "q_proj,,v_proj"}, "loraTargets must be names"),
        ({"loraRank": 8, "loraTargets": "q-proj"}, "not 'q-proj'"),
    ],
)
def test_what_is_wrong_with_adapters_is_said(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        read_settings(EngineSettings, config)


def test_targets_may_be_names_or_ends_of_paths() -> None:
    assert lora_targets("q_proj, layers.0.mlp.up_proj") == ("q_proj", "layers.0.mlp.up_proj")
