"""The conformance suite on NCCL's double, and on GPUs."""

from tests.doubles.build import NCCL
from tests.unit.rollcall_runtime.sync import real_devices
from tests.unit.rollcall_runtime.sync.conformance import *  # noqa: F403
from tests.unit.rollcall_runtime.sync.engine_cases import SHORT, Case, members_of
from tests.unit.rollcall_runtime.sync.staging_memory import DOUBLE_GPU, REAL_GPU

_DOUBLE = SHORT | {"library": NCCL, "cudaRuntime": NCCL, "reuseSeconds": 0.1}
_REAL = real_devices.SETTINGS | {"reuseSeconds": 0.1}
_ON_GPUS = real_devices.ENVIRONMENT

case, processes, trio = members_of(
    Case("nccl", _DOUBLE, device="cuda"),
    Case("nccl", _DOUBLE, DOUBLE_GPU, device="cuda", variant="staged"),
    Case("nccl", _REAL, _ON_GPUS, device="cuda", real=True),
    Case("nccl", _REAL, _ON_GPUS | REAL_GPU, device="cuda", variant="staged", real=True),
)
