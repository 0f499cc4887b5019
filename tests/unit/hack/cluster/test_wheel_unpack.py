"""A program from a wheel is the one whose hash the repository names."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from hack.cluster import wheel_unpack
from hack.cluster.errors import CommandError

INFO = "tool-1.dist-info"
FILES = {
    "tool/bin/tool": "a program",
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: tool\nVersion: 1\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/RECORD": "",
}


def requirement(folder: Path, *, digest: str = "") -> Path:
    """A requirements file of a wheel made now, pinned by its hash or by another one."""
    wheel = folder / "tool-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    path = folder / "tool.txt"
    path.write_text(f"tool @ file://{wheel} --hash=sha256:{digest}\n")
    return path


def test_the_wheel_is_unpacked(tmp_path: Path) -> None:
    target = tmp_path / "made"
    wheel_unpack.unpack(requirement(tmp_path), target)
    assert (target / "tool" / "bin" / "tool").read_text() == "a program"


def test_a_wheel_of_another_hash_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(CommandError, match="DO NOT MATCH THE HASHES"):
        wheel_unpack.unpack(requirement(tmp_path, digest="0" * 64), target)
    assert not target.exists()
