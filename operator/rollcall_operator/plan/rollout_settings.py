"""Errors of a pool's inference engine that show before its image is started."""

from collections.abc import Iterator, Mapping
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.rolloutpool import RolloutBase
from rollcall_operator.plan.children.trainer_ranks import accelerators
from rollcall_protocol.job_config import AGENT_SETTINGS
from rollcall_protocol.settings_reader import SettingError, read_settings
from rollcall_protocol.vllm_settings import VLLM, VllmSettings


def vllm_settings(config: Mapping[str, Any]) -> VllmSettings:
    """What `engine.config` of a pool on vLLM says; SettingError."""
    return read_settings(VllmSettings, {key: config[key] for key in config.keys() - AGENT_SETTINGS})


def engine_errors(spec: RLJobSpec, rollout: RolloutBase, path: str) -> Iterator[str]:
    """What is wrong with the settings of vLLM; `path` leads to the pool's spec.

    The pods check the settings of other engines.
    """
    if rollout.engine.name != VLLM:
        return
    if spec.model.path.startswith("builtin:"):
        yield f"{path}.engine.name: vllm does not serve builtin models; name tiny"
    try:
        settings = vllm_settings(rollout.engine.config)
    except SettingError as error:
        yield f"{path}.engine.config{'.' * bool(error.key)}{error.key}: {error.problem}"
        return
    asked = sum(accelerators(rollout.template, labels.ROLLOUT).values())
    if 0 < asked < settings.tensor_parallel_size:
        yield (
            f"{path}.engine.config: tensorParallelSize {settings.tensor_parallel_size} needs as "
            f"many accelerators, and the container asks for {asked}; lower the one, or raise the "
            "other"
        )
