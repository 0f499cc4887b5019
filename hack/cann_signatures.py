"""Writes the C signatures of CANN that weight sync calls, as torch_npu's wheel declares them.

    python -m hack.cann_signatures            # downloads the wheel (44 MB), writes the JSON file
    python -m hack.cann_signatures --check    # fails if the file differs from the wheel

`torch_npu` brings the headers of AscendCL and HCCL, but cannot be installed beside torch for CPUs,
and is too large to download in each test run. So the few declarations are kept in the repository,
and a test compares the ctypes declarations and the doubles with them.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from rollcall_plugins.transports.hccl import hccl_library
from rollcall_runtime.sync.bindings import acl_library

TORCH_NPU = "2.14.0"
FILE = Path("tests/plugins/transports/hccl/cann_signatures.json")
HEADERS = "torch_npu/include/third_party/"
FUNCTIONS = (
    *acl_library._FUNCTIONS,
    *acl_library._SHARING,
    *hccl_library._FUNCTIONS,
    *hccl_library._OPTIONAL,
)
ENUMERATORS = (
    "ACL_MEM_MALLOC_HUGE_FIRST",
    "ACL_MEMCPY_HOST_TO_DEVICE",
    "ACL_MEMCPY_DEVICE_TO_HOST",
    "ACL_MEMCPY_DEVICE_TO_DEVICE",
    "ACL_EVENT_RECORDED_STATUS_COMPLETE",
    "HCCL_DATA_TYPE_INT8",
)
CONSTANTS = (
    "ACL_ERROR_REPEAT_INITIALIZE",
    "ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION",
    "HCCL_ROOT_INFO_BYTES",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare the file")
    parser.add_argument("--wheel", type=Path, help="a torch_npu wheel that is here already")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        text = extract(options.wheel or download(Path(folder)))
    if options.check:
        if FILE.read_text(encoding="utf-8") == text:
            return 0
        sys.stderr.write(f"{FILE} differs from torch_npu {TORCH_NPU}: run without --check\n")
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


def download(folder: Path) -> Path:
    """The wheel of torch_npu, by pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    wanted = ["--only-binary", ":all:", "--dest", str(folder), f"torch-npu=={TORCH_NPU}"]
    subprocess.run([*command, *wanted], check=True)
    return next(folder.glob("*.whl"))


def extract(wheel: Path) -> str:
    """The file's text: argument types of each function, values of each constant."""
    with zipfile.ZipFile(wheel) as archive:
        texts = [
            archive.read(name).decode(errors="replace")
            for name in sorted(archive.namelist())
            if name.startswith((f"{HEADERS}acl/inc/acl/", f"{HEADERS}hccl/"))
            and name.endswith(".h")
        ]
    header = re.sub(r"/\*.*?\*/|//[^\n]*", "", "\n".join(texts), flags=re.DOTALL)
    found = {
        "source": f"{wheel.name.split('-cp')[0]}: {HEADERS}{{acl,hccl}}",
        "functions": {name: argument_types(header, name) for name in FUNCTIONS},
        "constants": {name: constant(header, name) for name in CONSTANTS}
        | {name: enumerator(header, name) for name in ENUMERATORS},
    }
    return json.dumps(found, indent=1) + "\n"


def argument_types(header: str, function: str) -> list[str]:
    """The types of a function's arguments; LookupError if the header does not declare it."""
    match = re.search(rf"\b{function}\(([^)]*)\)\s*;", header)
    if match is None:
        raise LookupError(f"the headers do not declare {function}")
    arguments = re.sub(r"\bconst\b", "", match[1]).replace("*", " * ").split(",")
    return [re.sub(r" \w+$", "", " ".join(argument.split())) for argument in arguments]


def constant(header: str, name: str) -> int:
    """The value of a macro or a constant."""
    match = re.search(rf"\b{name}\s*=?\s*(0x[0-9a-fA-F]+|\d+)", header)
    if match is None:
        raise LookupError(f"the headers do not define {name}")
    return int(match[1], 0)


def enumerator(header: str, name: str) -> int:
    """The value of an enumerator, counted from the last one that has a value."""
    body = next(body for body in re.findall(r"enum[^{]*{([^}]*)}", header) if name in body)
    value = -1
    for part in body.split(","):
        words = part.split("=")
        value = int(words[1], 0) if len(words) == 2 else value + 1
        if words[0].strip() == name:
            return value
    raise LookupError(f"the headers do not define {name}")


if __name__ == "__main__":
    sys.exit(main())
