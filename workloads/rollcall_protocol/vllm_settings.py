"""`engine.config` of a rollout pool whose inference engine is `vllm`."""

from dataclasses import dataclass
from typing import Annotated

from rollcall_protocol.server_settings import ServerSettings, split_arguments
from rollcall_protocol.setting_ranges import AT_LEAST_1

VLLM = "vllm"
"""The engine's name."""

# What Rollcall says to vLLM itself, or what would open a second endpoint to it.
_TAKEN = (
    "--model",
    "--trust-remote-code",
    "--host",
    "--port",
    "--uds",
    "--api-key",
    "--load-format",
    "--logprobs-mode",
    "--weight-transfer-config",
    "--tensor-parallel-size",
    "-tp",
    "--max-model-len",
    "--dtype",
    "--served-model-name",
    "--headless",
    "--grpc",
    "--enable-lora",
    "--no-enable-lora",
    "--lora-modules",
    "--max-lora-rank",
    "--max-loras",
    "--max-cpu-loras",
    "--gpu-memory-utilization",
)
# With these there are weights that an update does not reach, or would not reach right.
_UNFIT = (
    "--quantization",
    "-q",
    "--pipeline-parallel-size",
    "-pp",
    "--data-parallel-size",
    "-dp",
    "--nnodes",
    "--cpu-offload-gb",
    "--config",
)


@dataclass(frozen=True, slots=True)
class VllmSettings(ServerSettings):
    """How the agent starts vLLM, with more arguments of `vllm serve`.

    `cache_gibibytes`: of the key-value cache on a CPU. `gpu_memory_utilization`: the share of an
    accelerator's memory for weights, cache and graphs; 0: what an update leaves, 0.92 at most.
    `threads` of each process. `recompute_cache`: whether responses that go on after an update
    compute their keys and values again.
    """

    cache_gibibytes: Annotated[int, AT_LEAST_1] = 1
    threads: Annotated[int, AT_LEAST_1] = 1
    recompute_cache: bool = False
    gpu_memory_utilization: float = 0.0

    def __post_init__(self) -> None:
        """ValueError says which setting is wrong, by the name that a user gives it."""
        ServerSettings.__post_init__(self)
        if not 0 <= self.gpu_memory_utilization < 1:
            raise ValueError("gpuMemoryUtilization must be at least 0 and below 1")

    def command_line(self) -> list[str]:
        """`arguments`, one by one; ValueError for an unclosed quotation, or one that is refused."""
        return split_arguments(self.arguments, server="vLLM", taken=_TAKEN, unfit=_UNFIT)
