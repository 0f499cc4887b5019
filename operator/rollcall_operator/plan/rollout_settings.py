"""Errors of a pool's inference engine that show before its image is started."""

from collections.abc import Iterator, Mapping
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.api.algorithm import SamplingSpec
from rollcall_operator.api.quantity import parse_decimal
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.rolloutpool import RolloutBase
from rollcall_operator.plan.children.trainer_ranks import accelerators
from rollcall_operator.plan.training_settings import sends_adapters
from rollcall_protocol.job_config import AGENT_SETTINGS
from rollcall_protocol.server_settings import ServerSettings
from rollcall_protocol.settings_reader import SettingError, read_settings
from rollcall_protocol.sglang_settings import SGLANG, SglangSettings, sampling_problem
from rollcall_protocol.vllm_settings import VLLM, VllmSettings

_WITHOUT_ADAPTERS = ("tiny", "transformers", SGLANG)

_SERVERS: dict[str, type[ServerSettings]] = {VLLM: VllmSettings, SGLANG: SglangSettings}


def is_server(engine: str) -> bool:
    """Whether rollouts on this engine start a server beside the agent."""
    return engine in _SERVERS


def server_settings(engine: str, config: Mapping[str, Any]) -> ServerSettings:
    """What `engine.config` of a pool says to the server that `engine` is; SettingError."""
    own = {key: config[key] for key in config.keys() - AGENT_SETTINGS}
    return read_settings(_SERVERS[engine], own)


def engine_errors(spec: RLJobSpec, rollout: RolloutBase, path: str) -> Iterator[str]:
    """What is wrong with a built-in engine and its settings; `path` leads to the pool's spec.

    The pods check other engines, and their settings.
    """
    name = rollout.engine.name
    if name in _WITHOUT_ADAPTERS and sends_adapters(spec.trainer):
        yield (
            f"{path}.engine.name: {name} does not serve adapters; name vllm, or set "
            "spec.trainer.engine.config.loraExport to merged"
        )
    if not is_server(name):
        return
    if spec.model.path.startswith("builtin:"):
        yield f"{path}.engine.name: {name} does not serve builtin models; name tiny"
    if name == SGLANG and spec.algorithm is not None:
        yield from _sampling_errors(spec.algorithm.sampling, path)
    try:
        settings = server_settings(name, rollout.engine.config)
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


def _sampling_errors(sampling: SamplingSpec, path: str) -> Iterator[str]:
    top_p = float(parse_decimal(sampling.top_p))
    if problem := sampling_problem(top_p=top_p, top_k=sampling.top_k):
        yield f"spec.algorithm.sampling.{problem}; change it, or name vllm as {path}.engine.name"
