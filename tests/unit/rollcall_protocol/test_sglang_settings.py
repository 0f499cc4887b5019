"""The settings of the inference engine `sglang`: what is wrong is named before a pod starts."""

from typing import Any

import pytest

from rollcall_protocol.settings_reader import SettingError, read_settings
from rollcall_protocol.sglang_settings import SET, UNFIT, SglangSettings, sampling_problem
from tests.plugins.inference.sglang.double.contract import CONTRACT


def test_arguments_are_split_as_on_a_command_line() -> None:
    config = {"arguments": "--max-running-requests=8 --chat-template 'a b'"}
    settings = read_settings(SglangSettings, config)
    assert settings.command_line() == ["--max-running-requests=8", "--chat-template", "a b"]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"maxTokens": 0}, "maxTokens must be at least 1"),
        ({"tensorParallelSize": 0}, "tensorParallelSize must be at least 1"),
        ({"maxModelLen": -1}, "maxModelLen must be at least 0"),
        ({"memFractionStatic": "1"}, "memFractionStatic must be at least 0 and below 1"),
        ({"memFractionStatic": "nan"}, "memFractionStatic must be at least 0 and below 1"),
        ({"silentSeconds": "0.5"}, "silentSeconds from 1 to 3600"),
        ({"startSeconds": "nan"}, "startSeconds must be at most 86400"),
        ({"arguments": "--port 8000"}, "arguments must not have --port, which Rollcall sets"),
        ({"arguments": "--trust_remote_code"}, "must not have --trust_remote_code, which Roll"),
        ({"arguments": "--dp-size=2"}, "--dp-size: updates would not reach all of SGLang"),
        ({"arguments": "--x 'open"}, "No closing quotation"),
        ({"recomputeCache": True}, "recomputeCache: unknown setting"),
    ],
)
def test_what_is_wrong_is_said(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        read_settings(SglangSettings, config)


def test_sglang_has_the_arguments_that_are_refused() -> None:
    assert {*SET, *UNFIT} <= CONTRACT["flags"].keys()


@pytest.mark.parametrize(
    ("top_p", "top_k", "problem"),
    [(1.0, 0, ""), (0.9, 0, "topP: must be 1"), (1.0, 5, "topK: must be 0")],
)
def test_only_the_temperature_is_in_the_log_probabilities(
    top_p: float, top_k: int, problem: str
) -> None:
    assert sampling_problem(top_p=top_p, top_k=top_k).startswith(problem)
    assert bool(sampling_problem(top_p=top_p, top_k=top_k)) == bool(problem)
