"""`engine.config` of a rollout pool whose inference engine is `sglang`."""

from dataclasses import dataclass
from typing import Annotated

from rollcall_protocol.server_settings import check_seconds, split_arguments
from rollcall_protocol.setting_ranges import AT_LEAST_0, AT_LEAST_1, check_ranges

SGLANG = "sglang"
"""The engine's name."""

# What Rollcall says to SGLang itself, or what would open a second endpoint to it.
SET = (
    "--model-path",
    "--model",
    "--host",
    "--port",
    "--api-key",
    "--admin-api-key",
    "--config",
    "--load-format",
    "--tp-size",
    "--tensor-parallel-size",
    "--context-length",
    "--mem-fraction-static",
    "--dtype",
    "--weight-version",
    "--incremental-streaming-output",
    "--enable-metrics",
    "--skip-server-warmup",
    "--skip-tokenizer-init",
)
# With these there are weights that an update does not reach, or processes that do not see a pause.
UNFIT = (
    "--dp-size",
    "--data-parallel-size",
    "--pp-size",
    "--pipeline-parallel-size",
    "--nnodes",
    "--tokenizer-worker-num",
    "--disaggregation-mode",
    "--speculative-algorithm",
    "--weight-cache-mode",
    "--smg-grpc-mode",
    "--grpc-mode",
    "--enable-lora",
)


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """How the agent starts SGLang.

    `max_tokens`: of a response, unless the job says otherwise. `max_model_len`: tokens of a prompt
    and its response; 0: as many as the model has positions. `dtype` of the weights that are served.
    `mem_fraction_static`: the part of an accelerator's memory for weights and cache; 0: as SGLang
    chooses. `start_seconds` bound the start; `silent_seconds` how long SGLang may not answer, which
    it does not while it loads weights. `arguments`: more of `sglang.launch_server`, as on a command
    line.
    """

    max_tokens: Annotated[int, AT_LEAST_1] = 256
    max_model_len: Annotated[int, AT_LEAST_0] = 0
    dtype: str = "auto"
    tensor_parallel_size: Annotated[int, AT_LEAST_1] = 1
    mem_fraction_static: float = 0.0
    start_seconds: float = 600.0
    silent_seconds: float = 120.0
    arguments: str = ""

    def __post_init__(self) -> None:
        """ValueError says which setting is wrong, by the name that a user gives it."""
        check_ranges(self)
        if not 0 <= self.mem_fraction_static < 1:
            raise ValueError("memFractionStatic must be at least 0 and below 1")
        check_seconds(self.start_seconds, self.silent_seconds)
        self.command_line()

    def command_line(self) -> list[str]:
        """`arguments`, one by one; ValueError for an unclosed quotation, or one that is refused."""
        found = split_arguments(self.arguments, taken=SET)
        unfit = {argument.partition("=")[0] for argument in found} & set(UNFIT)
        if unfit:
            raise ValueError(
                f"arguments must not have {min(unfit)}: updates would not reach all of SGLang"
            )
        return found


def sampling_problem(*, top_p: float, top_k: int) -> str:
    """Which setting SGLang's log-probabilities leave out, and why that will not do; maybe none."""
    if top_p < 1:
        return "topP: must be 1 with sglang, whose log-probabilities leave it out"
    if top_k > 0:
        return "topK: must be 0 with sglang, whose log-probabilities leave it out"
    return ""
