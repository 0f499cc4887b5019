"""The ctypes declarations against the headers that NVIDIA's wheels bring along."""

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollcall_plugins.transports.nccl import nccl_library
from rollcall_runtime.sync.bindings import cuda_library

NCCL = {**nccl_library._FUNCTIONS, **nccl_library._OPTIONAL}
CUDA = cuda_library._FUNCTIONS
VALUES = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "ncclDataType_t": ctypes.c_int,
    "enum cudaMemcpyKind": ctypes.c_int,
    "ncclUniqueId": nccl_library.UniqueId,
    "ncclComm_t": ctypes.c_void_p,
    "cudaStream_t": ctypes.c_void_p,
}


def header(pattern: str) -> str:
    """The text of a header, without comments."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or []) if spec else []
    found = [path for folder in folders for path in Path(folder).glob(pattern)]
    if not found:
        pytest.skip(f"no wheel brings {pattern}")
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", found[0].read_text(), flags=re.DOTALL)


def declared(text: str, function: str) -> list[str]:
    """The types of a function's arguments, as the header has them."""
    match = re.search(rf"\b{function}\(([^)]*(?:\([^)]*\))?[^)]*)\)\s*;", text)
    assert match is not None, f"the header has no {function}"
    plain = re.sub(r"__dv\([^)]*\)|\bconst\b", "", match[1])
    arguments = [" ".join(argument.replace("*", " * ").split()) for argument in plain.split(",")]
    return [re.sub(r" \w+$", "", argument) for argument in arguments]


def fits(wanted: str, given: Any) -> bool:
    """Whether a ctypes type passes what the header wants."""
    if wanted.endswith("*"):
        return given is ctypes.c_void_p or issubclass(given, ctypes._Pointer)
    return given is VALUES[wanted]


def compare(text: str, function: str, arguments: Sequence[Any]) -> None:
    wanted = declared(text, function)
    assert len(wanted) == len(arguments), wanted
    for number, (want, given) in enumerate(zip(wanted, arguments, strict=True)):
        assert fits(want, given), f"argument {number} of {function}: {want} and {given}"


@pytest.mark.parametrize("function", NCCL)
def test_nccl_is_called_as_its_header_says(function: str) -> None:
    compare(header("nccl/include/nccl.h"), function, NCCL[function])


@pytest.mark.parametrize("function", CUDA)
def test_the_cuda_runtime_is_called_as_its_header_says(function: str) -> None:
    compare(header("*/include/cuda_runtime_api.h"), function, CUDA[function])


def test_nccl_s_numbers_are_those_of_its_header() -> None:
    text = header("nccl/include/nccl.h")
    for name, value in (
        ("ncclSuccess", nccl_library._SUCCESS),
        ("ncclInProgress", nccl_library._IN_PROGRESS),
        ("ncclUint8", nccl_library._UINT8),
    ):
        assert re.search(rf"\b{name}\s*=\s*{value},", text)
    assert re.search(rf"NCCL_SHRINK_ABORT 0x0{nccl_library._SHRINK_ABORT}\b", text)
    assert re.search(rf"NCCL_API_MAGIC 0x{nccl_library._MAGIC:x}\b", text)
    fields = re.search(r"size_t size;\s*unsigned int magic;(.*?)}", text, re.DOTALL)
    assert fields is not None
    names = ["version", "blocking", "cgaClusterSize", "minCTAs", "maxCTAs", "netName", "splitShare"]
    assert re.findall(r"(\w+);", fields[1])[: len(names)] == names
