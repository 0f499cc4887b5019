"""`engine.config` of a rollout pool whose inference engine is `sglang`."""

from dataclasses import dataclass

from rollcall_protocol.server_settings import ServerSettings, split_arguments

SGLANG = "sglang"
"""The engine's name."""

# What Rollcall says to SGLang itself, or what would open a second endpoint to it.
SET = (
    "--model-path",
    "--trust-remote-code",
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
class SglangSettings(ServerSettings):
    """How the agent starts SGLang, with more arguments of `sglang.launch_server`.

    `mem_fraction_static`: the part of an accelerator's memory for weights and cache; 0: as SGLang
    chooses. SGLang does not answer while it loads weights, which `silent_seconds` must allow.
    """

    silent_seconds: float = 120.0
    mem_fraction_static: float = 0.0

    def __post_init__(self) -> None:
        """ValueError says which setting is wrong, by the name that a user gives it."""
        ServerSettings.__post_init__(self)
        if not 0 <= self.mem_fraction_static < 1:
            raise ValueError("memFractionStatic must be at least 0 and below 1")

    def command_line(self) -> list[str]:
        """`arguments`, one by one; ValueError for an unclosed quotation, or one that is refused."""
        return split_arguments(self.arguments, server="SGLang", taken=SET, unfit=UNFIT)


def sampling_problem(*, top_p: float, top_k: int) -> str:
    """Which setting SGLang's log-probabilities leave out, and why that will not do; maybe none."""
    if top_p < 1:
        return "topP: must be 1 with sglang, whose log-probabilities leave it out"
    if top_k > 0:
        return "topK: must be 0 with sglang, whose log-probabilities leave it out"
    return ""
