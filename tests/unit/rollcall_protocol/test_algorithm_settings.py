"""Presets are settings, and what cannot be combined is refused by its name in a manifest."""

import json
from typing import Any

import pytest

from rollcall_protocol.algorithm_settings import PRESETS, AlgorithmSettings, preset
from rollcall_protocol.wire.json_codec import decode, encode


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_nothing_but_settings(name: str) -> None:
    found = preset(name)
    assert {key: getattr(found, key) for key in PRESETS[name]} == dict(PRESETS[name])
    assert preset(name, entropy_coefficient=0.5).entropy_coefficient == 0.5


def test_the_defaults_are_those_of_grpo() -> None:
    assert preset("grpo") == AlgorithmSettings()


def test_only_algorithms_with_a_critic_need_one_and_none_needs_a_reference() -> None:
    assert [name for name in PRESETS if preset(name).needs_critic] == ["ppo"]
    assert not any(preset(name).needs_reference for name in PRESETS)
    assert preset("grpo", kl_coefficient=0.1).needs_reference


def test_samples_of_a_prompt_are_compared_unless_a_critic_or_nothing_is_the_baseline() -> None:
    alone = [name for name in PRESETS if not preset(name).compares_in_groups]
    assert alone == ["reinforce++", "ppo"]


def test_settings_travel_as_json() -> None:
    sent = preset("dapo", overlong_limit=8, overlong_buffer=2)
    assert decode(AlgorithmSettings, json.loads(json.dumps(encode(sent)))) == sent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "mean"}, "baseline must be one of group-mean, leave-one-out, critic, none"),
        ({"kl_estimator": "k4"}, "klEstimator must be one of k1, k2, k3"),
        ({"discount": 1.1}, "discount must be between 0 and 1"),
        ({"gae_lambda": float("nan")}, "gaeLambda must be between 0 and 1"),
        ({"kl_coefficient": -0.1}, "klCoefficient must be between 0 and 1000"),
        ({"entropy_coefficient": float("inf")}, "entropyCoefficient must be between 0 and 1000"),
        ({"correction_cap": 0.5}, "correctionCap must be between 1 and 1000"),
        ({"aggregation_length": 0}, "aggregationLength must be between 1 and 1000000"),
        ({"baseline": "critic"}, "normalisation must not be group-std when baseline is critic"),
        ({"clip_low": 1.0}, "clipLow must be above 0 and below 1 when objective is ppo"),
        ({"clip_low": 0.0}, "clipLow must be above 0 and below 1 when objective is ppo"),
        ({"dual_clip": 1.0}, "dualClip must be 0, or above 1 with objective ppo"),
        ({"dual_clip": 0.9}, "dualClip must be 0, or above 1 with objective ppo"),
        ({"dual_clip": 3.0, "objective": "gspo"}, "dualClip must be 0, or above 1 with objective"),
        ({"ratio_base": "behaviour"}, "correction must be none when ratioBase is behaviour"),
        ({"correction_floor": 1.5}, "correctionFloor must be between 0 and 1"),
        (
            {"ratio_base": "behaviour", "correction": "masked", "objective": "cispo"},
            "correction must be none when ratioBase is behaviour",
        ),
        ({"overlong_limit": 4}, "overlongBuffer must be between 1 and overlongLimit"),
        (
            {"overlong_limit": 4, "overlong_buffer": 5},
            "overlongBuffer must be between 1 and overlongLimit",
        ),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlgorithmSettings(**changes)


@pytest.mark.parametrize("correction", ["truncated", "masked"])
def test_without_a_ratio_a_correction_goes_with_any_base(correction: str) -> None:
    AlgorithmSettings(objective="policy-gradient", ratio_base="behaviour", correction=correction)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown algorithm 'trpo'; known: grpo, dr-grpo, rloo"):
        preset("trpo")
