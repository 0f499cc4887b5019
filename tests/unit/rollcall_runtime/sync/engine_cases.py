"""The engines that the conformance suite runs, each with settings that keep its tests short."""

from dataclasses import dataclass, field
from typing import Any

from tests.doubles.build import FOLDER, NCCL
from tests.unit.rollcall_runtime.sync.staging_memory import DOUBLE_GPU, DOUBLE_NPU


@dataclass(frozen=True, slots=True)
class Case:
    """An engine, its settings as in an RLJob, what its processes find in the environment, and
    the torch device type that it is to serve. FOLDER in a setting is one of the tests' own.
    `variant` distinguishes two cases of an engine.
    """

    engine: str
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    variant: str = ""

    @property
    def id(self) -> str:
        """In the tests' names."""
        return f"{self.engine}-{self.variant}" if self.variant else self.engine


SHORT = {"operationTimeout": 2, "maxAbandoned": 3}
_NCCL = SHORT | {"library": NCCL, "cudaRuntime": NCCL, "reuseSeconds": 0.1}
_CANN = {"LD_LIBRARY_PATH": str(FOLDER)}

CASES = [
    Case("gloo", SHORT),
    Case("mooncake", SHORT),
    Case("kimi", SHORT),
    Case("nixl", SHORT),
    Case("ray", SHORT),
    Case("store", SHORT | {"url": "file://FOLDER/store", "keepSeconds": 0}),
    Case("nccl", _NCCL, device="cuda"),
    Case("nccl", _NCCL, DOUBLE_GPU, device="cuda", variant="staged"),
    Case("hccl", SHORT, _CANN, device="npu"),
    Case("hccl", SHORT, _CANN | DOUBLE_NPU, device="npu", variant="staged"),
]
