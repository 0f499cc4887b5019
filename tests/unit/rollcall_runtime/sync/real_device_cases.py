"""The engines of accelerators with their real libraries: `make test-gpu`.

Every member of a session needs a device of its own, four in all. NCCL takes processes for ranks of
one host by its id, and refuses two of them on one GPU; where there are fewer than four GPUs, each
member claims to be a host of its own, so that they talk over sockets and share what GPUs there are.
HCCL has no such way. Nothing of this has been run on a real device yet.
"""

import os

import pytest
import torch

from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.bindings.hccl_library import locate
from tests.unit.rollcall_runtime.sync.engine_cases import Case
from tests.unit.rollcall_runtime.sync.staging_memory import REAL_GPU, REAL_NPU

DEVICES = 4
_SPREAD = "ROLLCALL_TEST_SPREAD"
_SETTINGS = {"operationTimeout": 5, "maxAbandoned": 3}
_NCCL = _SETTINGS | {"reuseSeconds": 0.1}
_ENVIRONMENT = {_SPREAD: "1"}

CASES = [
    Case("nccl", _NCCL, _ENVIRONMENT, device="cuda"),
    Case("nccl", _NCCL, _ENVIRONMENT | REAL_GPU, device="cuda", variant="staged"),
    Case("hccl", _SETTINGS, _ENVIRONMENT, device="npu"),
    Case("hccl", _SETTINGS, _ENVIRONMENT | REAL_NPU, device="npu", variant="staged"),
]


def skip_without_device(case: Case) -> None:
    """Skip, saying what is missing."""
    if case.device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    if case.device == "npu":
        try:
            locate("libhccl.so")
        except ImportError as error:
            pytest.skip(str(error))


def spread(member: MemberId) -> None:
    """In a member's process, before it opens its engine: choose its device.

    The first three members live as long as the tests; the others, of which no session has more than
    one, share the fourth device.
    """
    if _SPREAD not in os.environ:
        return
    number = int(member.pod_uid.rpartition("-")[2])
    os.environ["LOCAL_RANK"] = str(min(number, DEVICES - 1))
    if torch.cuda.device_count() < DEVICES:
        os.environ["NCCL_HOSTID"] = member.pod_uid
