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
from rollcall_runtime.sync.bindings.acl_library import locate

DEVICES = 4
_SPREAD = "ROLLCALL_TEST_SPREAD"
SETTINGS = {"operationTimeout": 5, "maxAbandoned": 3}
ENVIRONMENT = {_SPREAD: "1"}


def skip_without(device: str) -> None:
    """Skip, saying what is missing."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    if device == "npu":
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
