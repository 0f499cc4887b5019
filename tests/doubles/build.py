"""Compiles the doubles of NCCL, the CUDA runtime, HCCL and AscendCL with the system's C compiler.

A double is a small library with a few functions of the real one, signatures and rules of use
included. It moves bytes between processes of one machine, and hangs as the real one does. Memory of
its devices is out of the host's reach: who touches it without a copy dies of SIGSEGV.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_SOURCES = Path(__file__).parent
_PLUGINS = _SOURCES.parent / "plugins" / "transports"
_COMMON = ("stream.c", "group.c", "device.c")
_FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-Bsymbolic"]
_FLAGS += ["-I", "."]  # what they share, below the folder in which they are compiled
_VARIANTS = {
    "libnccl_double.so": ("nccl/nccl.c", "cudart.c"),
    "libnccl_old_double.so": ("-DDOUBLE_OLD", "nccl/nccl.c", "cudart.c"),
    "libhccl.so": ("hccl/hccl.c", "acl.c"),
}
_LINKS = {"libascendcl.so": "libhccl.so"}


def _version() -> str:
    digest = hashlib.sha256(repr((_FLAGS, _VARIANTS)).encode())
    for source in sorted((*_SOURCES.glob("*.[ch]"), *_PLUGINS.glob("*/*.c"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _source(name: str) -> Path:
    """A plug-in's own, or what several share."""
    return (_PLUGINS if "/" in name else _SOURCES) / name


FOLDER = _SOURCES / ".cache" / _version()  # not under version control
NCCL = str(FOLDER / "libnccl_double.so")  # holds the CUDA runtime's functions too
NCCL_OLD = str(FOLDER / "libnccl_old_double.so")


def build() -> None:
    """Compile what has changed; needs cc. Safe when several processes do it at once."""
    FOLDER.parent.mkdir(exist_ok=True)
    with (FOLDER.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if FOLDER.exists():
            return
        making = FOLDER.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        for name, parts in _VARIANTS.items():
            sources = [part if part.startswith("-") else str(_source(part)) for part in parts]
            common = [str(_SOURCES / part) for part in _COMMON]
            command = ["cc", *_FLAGS, *sources, *common, "-o", str(making / name), "-lpthread"]
            subprocess.run(command, check=True, cwd=_SOURCES)
        for name, target in _LINKS.items():
            (making / name).symlink_to(target)
        os.rename(making, FOLDER)  # noqa: PTH104 - whole or not at all
