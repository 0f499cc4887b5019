"""The engines that the conformance suite runs, each with settings that keep its tests short."""

from dataclasses import dataclass, field
from typing import Any

from tests.doubles.build import FOLDER, NCCL


@dataclass(frozen=True, slots=True)
class Case:
    """An engine, its settings as in an RLJob, what its processes find in the environment, and
    the torch device type that it is to serve. FOLDER in a setting is one of the tests' own.
    """

    engine: str
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"


SHORT = {"operationTimeout": 2, "maxAbandoned": 3}

CASES = [
    Case("gloo", SHORT),
    Case("mooncake", SHORT),
    Case("kimi", SHORT),
    Case("nixl", SHORT),
    Case("store", SHORT | {"url": "file://FOLDER/store", "keepSeconds": 0}),
    Case(
        "nccl", SHORT | {"library": NCCL, "cudaRuntime": NCCL, "reuseSeconds": 0.1}, device="cuda"
    ),
    Case("hccl", SHORT, {"LD_LIBRARY_PATH": str(FOLDER)}, device="npu"),
]
