"""What Rollcall does not do for AReaL is refused by name, before anything starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from areal.api import ModelRequest
from areal.api.cli_args import (
    GenerationHyperparameters,
    GRPOConfig,
    InferenceEngineConfig,
    SchedulingStrategy,
    TeacherConfig,
)

import rollcall.areal
from rollcall import RollcallError
from rollcall.areal import PPOTrainer
from tests.plugins.trainers_of_ones_own.areal.program import config

EOS, PAD = 2, 0


class Tokenizer:
    eos_token_id, pad_token_id = EOS, PAD


def adapters(chosen: GRPOConfig) -> None:
    chosen.actor.use_lora = True


def second_version(chosen: GRPOConfig) -> None:
    chosen.actor._version = chosen.rollout._version = "v2"


def experts(chosen: GRPOConfig) -> None:
    chosen.rollout.return_routed_experts = True


def online(chosen: GRPOConfig) -> None:
    chosen.rollout.agent.mode = "online"


def teacher(chosen: GRPOConfig) -> None:
    chosen.teacher = TeacherConfig(rollout=InferenceEngineConfig())


def together(chosen: GRPOConfig) -> None:
    chosen.rollout.scheduling_strategy = SchedulingStrategy(type="colocation", target="actor")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (adapters, "actor.use_lora is not supported with Rollcall; train all weights"),
        (second_version, "_version v2 is not supported with Rollcall; take v1"),
        (experts, "rollout.return_routed_experts"),
        (online, "rollout.agent.mode online is not supported with Rollcall; pass a workflow"),
        (teacher, "teacher.engine_type rollout"),
        (together, "colocation of actor or rollout"),
    ],
)
def test_a_setting_is_refused(
    change: Callable[[GRPOConfig], None], named: str, tmp_path: Path
) -> None:
    chosen = config("model", tmp_path, {"steps": 1})
    change(chosen)
    with pytest.raises(RollcallError, match=named):
        PPOTrainer(chosen)


def test_areals_launcher_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AREAL_SPMD_MODE", "1")
    with pytest.raises(RollcallError, match="run the script by itself"):
        PPOTrainer(config("model", tmp_path, {"steps": 1}))


@pytest.mark.parametrize("other", ["1.0.3", "1.1.0"])
def test_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: str
) -> None:
    monkeypatch.setattr(rollcall.areal, "version", lambda _: other)
    with pytest.raises(RollcallError, match=f"areal {other} is installed; 1.0.4 up to"):
        PPOTrainer(config("model", tmp_path, {"steps": 1}))


def test_a_job_is_needed(tmp_path: Path) -> None:
    with pytest.raises(RollcallError, match="this is no trainer of a job"):
        PPOTrainer(config("model", tmp_path, {"steps": 1}))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"n_samples": 2}, "n_samples is 2, which rollouts do not have; leave it out"),
        ({"min_new_tokens": 4}, "min_new_tokens is 4"),
        ({"ignore_eos": True}, "ignore_eos is True"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is 0.5"),
        ({"use_beam_search": True}, "use_beam_search is True"),
        ({"max_tokens": 3}, "the prompt has 3 tokens, and gconfig.max_tokens is 3"),
    ],
)
def test_a_setting_of_a_request_is_refused(settings: dict[str, Any], named: str) -> None:
    request = ModelRequest(input_ids=[5, 6, 7], gconfig=GenerationHyperparameters(**settings))
    with pytest.raises(RollcallError, match=named):
        rollcall.areal._check_request(request)


def test_images_are_refused() -> None:
    request = ModelRequest(input_ids=[5], image_data=["..."])
    with pytest.raises(RollcallError, match="image_data is True"):
        rollcall.areal._check_request(request)


@pytest.mark.parametrize(
    ("tokens", "settings", "reason"),
    [
        ((5, EOS), {}, "stop"),
        ((5, 6, 7, EOS), {}, "stop"),
        ((5, 6, 7, 8), {}, "length"),
        ((5, 6), {}, "length"),  # the rollout's own bound
        ((5, 9), {"stop_token_ids": [9]}, "stop"),
        ((5, 6), {"stop": ["b"]}, "stop"),
        ((5, 6, 7, 8), {"stop": ["b"]}, "length"),
    ],
)
def test_why_a_response_has_ended(
    tokens: tuple[int, ...], settings: dict[str, Any], reason: str
) -> None:
    request = ModelRequest(gconfig=GenerationHyperparameters(**settings), tokenizer=Tokenizer())
    assert rollcall.areal._stop_reason(tokens, 4, request) == reason
