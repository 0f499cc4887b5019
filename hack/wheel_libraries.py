"""Lists the shared libraries that the wheels of each image need and do not bring along.

`make lock` runs this as `python -m hack.wheel_libraries`: for each image whose requirement file has
changed it downloads the wheels (some 500 MB in all, into uv's cache), reads the ELF headers of
their libraries, and writes requirements/shared-libraries.json. A unit test holds that file against
the requirement files and against what the images' bases and packages provide.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
FACTS = REQUIREMENTS / "shared-libraries.json"
ARCHITECTURES = ("x86_64", "aarch64")
# The C and C++ runtimes, which every base has. Wheels' platform tags bound their versions.
RUNTIMES = frozenset(
    {
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libdl.so.2"),
        *("libpthread.so.0", "librt.so.1", "libresolv.so.2", "libgcc_s.so.1", "libstdc++.so.6"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The environment that an image's wheels are installed into.

    Attributes:
        requirements: the name of the requirement file.
        python: the version of Python.
        glibc: the version of the C library, as wheels' platform tags spell it.
    """

    requirements: str
    python: str
    glibc: str


IMAGES = {
    "operator": Image(requirements="operator.txt", python="3.13", glibc="2_40"),
    "worker-cpu": Image(requirements="worker.txt", python="3.13", glibc="2_40"),
    "worker-ascend": Image(requirements="worker-ascend.txt", python="3.11", glibc="2_35"),
}


def needed_of(path: Path) -> list[str]:
    """The DT_NEEDED entries of an ELF file; none for any other file."""
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return []
        try:
            dynamic = ELFFile(file).get_section_by_name(".dynamic")
        except ELFError:
            return []
        if not isinstance(dynamic, DynamicSection):
            return []
        return [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]  # type: ignore[attr-defined]


def owners(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Name, version and path of each installed file, from the RECORD of each distribution."""
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        name, version = record.parent.name.removesuffix(".dist-info").rsplit("-", 1)
        for line in record.read_text(encoding="utf-8").splitlines():
            path = folder / line.rsplit(",", 2)[0].strip('"')
            if path.is_file() and not path.is_symlink():
                yield re.sub(r"[-_.]+", "-", name).lower(), version, path


def missing_libraries(folder: Path) -> dict[str, dict[str, list[str]]]:
    """By distribution ("name==version"), then library: the files that need it from elsewhere.

    Every distribution with an ELF file is there, also one that needs nothing. A library that any
    installed wheel brings along counts as found, and so do the C and C++ runtimes.
    """
    found: dict[str, dict[str, list[str]]] = {}
    brought = {path.name for path in folder.rglob("*.so*")}
    for name, version, path in owners(folder):
        needed = needed_of(path)
        if needed:
            missing = found.setdefault(f"{name}=={version}", {})
            for library in needed:
                if library not in brought | RUNTIMES:
                    missing.setdefault(library, []).append(str(path.relative_to(folder)))
    return {name: dict(sorted(missing.items())) for name, missing in sorted(found.items())}


def install(image: Image, architecture: str, folder: Path) -> None:
    """Unpack the wheels that the image would get on this architecture."""
    command = [
        *(str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-deps"),
        *("--require-hashes", "--only-binary", ":all:", "--python", sys.executable),
        *("--python-version", image.python),
        *("--python-platform", f"{architecture}-manylinux_{image.glibc}"),
        *("--target", str(folder), "--requirement", str(REQUIREMENTS / image.requirements)),
    ]
    subprocess.run(command, check=True, timeout=1200)


def digest(image: Image) -> str:
    """The hash of the image's requirement file."""
    return hashlib.sha256((REQUIREMENTS / image.requirements).read_bytes()).hexdigest()


def main() -> None:
    """Write the file of facts again, as far as requirement files have changed."""
    before = json.loads(FACTS.read_text(encoding="utf-8")) if FACTS.exists() else {}
    facts = {}
    for name, image in IMAGES.items():
        facts[name] = before.get(name, {})
        if facts[name].get("requirements") == digest(image):
            continue
        facts[name] = {"requirements": digest(image)}
        for architecture in ARCHITECTURES:
            print(f"{name}: reading the wheels for {architecture}", file=sys.stderr)
            with tempfile.TemporaryDirectory() as temporary:
                install(image, architecture, Path(temporary))
                facts[name][architecture] = missing_libraries(Path(temporary))
    FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
