"""What a bare machine with PyTorch lacks, carried there as wheels: it may reach no index.

`make first-contact-wheels` fetches them for another machine's Python; `make first-contact` unpacks
those that are there into a folder of its own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".first-contact"
LOCK = ROOT / "requirements" / "worker-cuda.txt"
# What the workers import beside PyTorch and transformers, which such machines mostly have.
NAMES = (
    *("blake3", "cffi", "cryptography", "fsspec", "pycparser", "pyjwt", "python-json-logger"),
    *("xxhash", "zlib-ng", "zstandard"),
)


@contextmanager
def with_wheels() -> Iterator[list[str]]:
    """A folder of modules for PYTHONPATH, if wheels are there; it goes with the context."""
    wheels = sorted((FOLDER / _of_python(*sys.version_info[:2])).glob("*.whl"))
    if not wheels:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="first-contact-") as site:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run(
            [*command, "--no-compile", "--target", site, *map(str, wheels)], check=True, timeout=120
        )
        yield [site]


def _of_python(major: int, minor: int) -> str:
    return f"cp{major}{minor}"


def main() -> None:
    """Fetch them, in the versions that the image for GPUs has."""
    parser = argparse.ArgumentParser(prog="make first-contact-wheels", description=main.__doc__)
    parser.add_argument("--python-version", default="3.12", help="of the machine with the device")
    parser.add_argument("--architecture", default="x86_64")
    given = parser.parse_args()
    folder = FOLDER / _of_python(*map(int, given.python_version.split(".")))
    folder.mkdir(parents=True, exist_ok=True)
    for former in folder.glob("*.whl"):
        former.unlink()
    lock = LOCK.read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", lock, re.MULTILINE))
    platforms = [f"manylinux_2_{minor}_{given.architecture}" for minor in (28, 34, 24, 17)]
    options = [f"--platform={name}" for name in (*platforms, f"manylinux2014_{given.architecture}")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", f"--python-version={given.python_version}", *options]
    wanted = [f"{name}=={pins[name]}" for name in NAMES]
    subprocess.run([*command, f"--dest={folder}", *wanted], check=True, timeout=600)
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    print(f"{len(NAMES)} wheels, {size / 1e6:.1f} MB, in {FOLDER.name}/{folder.name}/")


if __name__ == "__main__":
    main()
