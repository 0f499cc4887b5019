"""Settings of a job's front: `spec.front`, as its workers read it."""

from dataclasses import dataclass

HERMES, LLAMA3_JSON, QWEN3_CODER = "hermes", "llama3_json", "qwen3_coder"
TOOL_PARSERS = ("auto", HERMES, LLAMA3_JSON, QWEN3_CODER)


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """How many requests a pod of the front has at once, and what it copies of trajectories.

    Beyond `most_running` requests `most_waiting` more wait; a request ends after `request_seconds`.
    There are copies of `most_trajectories` that have no reward yet, with `most_tokens` in all. The
    coordinator keeps each for `trajectory_seconds` after its last completion. `without_keys`: the
    front asks clients for no API key. `tool_parser`: how the model writes calls of tools; "auto"
    finds it.
    """

    most_running: int = 256
    most_waiting: int = 256
    request_seconds: float = 600.0
    most_trajectories: int = 10_000
    most_tokens: int = 10_000_000
    trajectory_seconds: float = 3600.0
    without_keys: bool = False
    tool_parser: str = TOOL_PARSERS[0]

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if min(self.most_running, self.most_trajectories, self.most_tokens) < 1:
            raise ValueError("maxRunning, maxTrajectories and maxTokens must be at least 1")
        if self.most_waiting < 0:
            raise ValueError("maxWaiting must be at least 0")
        if min(self.request_seconds, self.trajectory_seconds) <= 0:
            raise ValueError("requestSeconds and trajectorySeconds must be above 0")
        if self.tool_parser not in TOOL_PARSERS:
            raise ValueError(f"toolParser must be one of {', '.join(TOOL_PARSERS)}")
