"""The ctypes declarations and the doubles of AscendCL and HCCL, against torch_npu's headers.

The headers' signatures are in `cann_signatures.json`, which `python -m hack.cann_signatures` writes
from the torch_npu wheel: the wheel cannot be installed beside torch for CPUs.
"""

import ctypes
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hack.cann_signatures import FUNCTIONS
from rollcall_plugins.transports.hccl import hccl_library
from rollcall_runtime.sync.bindings import acl_library

ROOT = Path(__file__).parents[4]
HEADERS = json.loads(Path(__file__).with_name("cann_signatures.json").read_text(encoding="utf-8"))
DECLARED: dict[str, Any] = {
    **acl_library._FUNCTIONS,
    **acl_library._SHARING,
    **hccl_library._FUNCTIONS,
    **hccl_library._OPTIONAL,
}
VALUES = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "HcclComm": ctypes.c_void_p,
    "aclrtStream": ctypes.c_void_p,
    "aclrtEvent": ctypes.c_void_p,
    # enumerations
    "aclrtMemMallocPolicy": ctypes.c_int,
    "aclrtMemcpyKind": ctypes.c_int,
    "HcclDataType": ctypes.c_int,
}
# What the headers' types are in the doubles, which do without the headers.
IN_DOUBLES = {
    "HcclComm": "void *",
    "aclrtStream": "void *",
    "aclrtEvent": "void *",
    "aclrtMemMallocPolicy": "int",
    "aclrtMemcpyKind": "int",
    "aclrtEventRecordedStatus": "int",
    "HcclDataType": "int",
    "HcclResult": "int",
}


def test_every_function_that_is_called_has_a_signature() -> None:
    assert set(HEADERS["functions"]) == set(FUNCTIONS) == set(DECLARED)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_cann_is_called_as_its_headers_declare(function: str) -> None:
    wanted, given = HEADERS["functions"][function], DECLARED[function]
    assert len(wanted) == len(given), wanted
    for number, (want, have) in enumerate(zip(wanted, given, strict=True)):
        if want.endswith("*"):
            fits = have in (ctypes.c_void_p, ctypes.c_char_p) or issubclass(have, ctypes._Pointer)
        else:
            fits = have is VALUES[want]
        assert fits, f"argument {number} of {function}: {want} and {have}"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_doubles_declare_what_the_headers_declare(function: str) -> None:
    own = Path(__file__).with_name("hccl.c")
    file = own if function.startswith("Hccl") else ROOT / "tests" / "doubles" / "acl.c"
    source = file.read_text(encoding="utf-8")
    match = re.search(rf"^int {function}\(([^)]*)\) {{", source, re.MULTILINE)
    assert match is not None, f"{file.name} does not define {function}"
    assert argument_types(match[1]) == [in_double(each) for each in HEADERS["functions"][function]]


def argument_types(arguments: str) -> list[str]:
    plain = re.sub(r"\bconst\b", "", arguments).replace("*", " * ").split(",")
    return [re.sub(r" \w+$", "", " ".join(argument.split())) for argument in plain]


def in_double(header_type: str) -> str:
    name, _, pointers = header_type.partition(" ")
    return f"{IN_DOUBLES.get(name, name)} {pointers}".strip()


def test_the_constants_are_those_of_the_headers() -> None:
    assert HEADERS["constants"] == {
        "ACL_ERROR_REPEAT_INITIALIZE": acl_library._REPEATED,
        "ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION": acl_library._ANY_PROCESS,
        "HCCL_ROOT_INFO_BYTES": hccl_library._ROOT_BYTES,
        "ACL_MEM_MALLOC_HUGE_FIRST": acl_library._HUGE_FIRST,
        "ACL_MEMCPY_HOST_TO_DEVICE": acl_library._TO_DEVICE,
        "ACL_MEMCPY_DEVICE_TO_HOST": acl_library._TO_HOST,
        "ACL_MEMCPY_DEVICE_TO_DEVICE": acl_library._WITHIN,
        "ACL_EVENT_RECORDED_STATUS_COMPLETE": acl_library._COMPLETE,
        "HCCL_DATA_TYPE_INT8": hccl_library._INT8,
    }
