"""The settings of the inference engine `vllm`: what is wrong is named before a pod starts."""

from typing import Any

import pytest

from rollcall_protocol.settings_reader import SettingError, read_settings
from rollcall_protocol.vllm_settings import VllmSettings


def test_arguments_are_split_as_on_a_command_line() -> None:
    settings = read_settings(VllmSettings, {"arguments": "--max-num-seqs=8 --chat-template 'a b'"})
    assert settings.command_line() == ["--max-num-seqs=8", "--chat-template", "a b"]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"maxTokens": 0}, "maxTokens must be at least 1"),
        ({"tensorParallelSize": 0}, "tensorParallelSize must be at least 1"),
        ({"maxModelLen": -1}, "maxModelLen must be at least 0"),
        ({"silentSeconds": "0.5"}, "silentSeconds from 1 to 3600"),
        ({"startSeconds": "nan"}, "startSeconds must be at most 86400"),
        ({"arguments": "--port 8000"}, "arguments must not have --port, which Rollcall sets"),
        ({"arguments": "--trust_remote_code"}, "must not have --trust_remote_code, which Roll"),
        ({"arguments": "--load-format=auto"}, "must not have --load-format"),
        ({"arguments": "--max-loras=9"}, "must not have --max-loras"),
        ({"arguments": "--load_format=auto"}, "must not have --load_format"),
        ({"arguments": "--weight-transfer-config.backend nccl"}, "weight-transfer-config.backend"),
        ({"arguments": "--max-model 9"}, "must not have --max-model, which"),
        (
            {"arguments": "--quantization fp8"},
            "updates would not reach all of vLLM",
        ),
        ({"arguments": "-q=fp8"}, "must not have -q: "),
        ({"arguments": "--gpu-memory-utilization=0.9"}, "which Rollcall sets"),
        ({"gpuMemoryUtilization": "1"}, "gpuMemoryUtilization must be at least 0 and below 1"),
        ({"arguments": "-dp 2"}, "must not have -dp: "),
        ({"arguments": "--x 'open"}, "No closing quotation"),
        ({"gpus": 1}, "gpus: unknown setting"),
    ],
)
def test_what_is_wrong_is_said(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        read_settings(VllmSettings, config)
