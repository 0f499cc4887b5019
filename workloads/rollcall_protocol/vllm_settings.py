"""`engine.config` of a rollout pool whose inference engine is `vllm`."""

from dataclasses import dataclass
from typing import Annotated

from rollcall_protocol.server_settings import check_seconds, split_arguments
from rollcall_protocol.setting_ranges import AT_LEAST_0, AT_LEAST_1, check_ranges

VLLM = "vllm"
"""The engine's name."""

# What Rollcall says to vLLM itself, or what would open a second endpoint to it.
_TAKEN = (
    "--model",
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
)


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How the agent starts vLLM. Seconds bound the start, and how long vLLM may not answer.

    `max_tokens`: of a response, unless the job says otherwise. `max_model_len`: tokens of a prompt
    and its response; 0: as many as the model has positions. `dtype` of the weights that are served.
    `cache_gibibytes`: of the key-value cache on a CPU; on an accelerator vLLM takes what is free.
    `threads` of each process. `recompute_cache`: whether responses that go on after an update
    compute their keys and values again. `arguments`: more of `vllm serve`, as on a command line.
    """

    max_tokens: Annotated[int, AT_LEAST_1] = 256
    max_model_len: Annotated[int, AT_LEAST_0] = 0
    dtype: str = "auto"
    tensor_parallel_size: Annotated[int, AT_LEAST_1] = 1
    cache_gibibytes: Annotated[int, AT_LEAST_1] = 1
    threads: Annotated[int, AT_LEAST_1] = 1
    recompute_cache: bool = False
    start_seconds: float = 600.0
    silent_seconds: float = 60.0
    arguments: str = ""

    def __post_init__(self) -> None:
        """ValueError says which setting is wrong, by the name that a user gives it."""
        check_ranges(self)
        check_seconds(self.start_seconds, self.silent_seconds)
        self.command_line()

    def command_line(self) -> list[str]:
        """`arguments`, one by one; ValueError for an unclosed quotation, or one that is taken."""
        return split_arguments(self.arguments, taken=_TAKEN)
