"""The conformance suite on HCCL's double, and on NPUs."""

from tests.doubles.build import FOLDER
from tests.unit.rollcall_runtime.sync import real_devices
from tests.unit.rollcall_runtime.sync.conformance import *  # noqa: F403
from tests.unit.rollcall_runtime.sync.engine_cases import SHORT, Case, members_of
from tests.unit.rollcall_runtime.sync.staging_memory import DOUBLE_NPU, REAL_NPU

_CANN = {"LD_LIBRARY_PATH": str(FOLDER)}
_REAL, _ON_NPUS = real_devices.SETTINGS, real_devices.ENVIRONMENT

case, processes, trio = members_of(
    Case("hccl", SHORT, _CANN, device="npu"),
    Case("hccl", SHORT, _CANN | DOUBLE_NPU, device="npu", variant="staged"),
    Case("hccl", _REAL, _ON_NPUS, device="npu", real=True),
    Case("hccl", _REAL, _ON_NPUS | REAL_NPU, device="npu", variant="staged", real=True),
)
