"""Writes stand-ins for the CUDA libraries that PyTorch's wheel links and that are not installed.

    python3 cuda_stubs.py SITE_PACKAGES TARGET

The wheel of PyTorch on PyPI is built for CUDA. Without an accelerator it calls nothing of cuBLAS,
cuDNN, NCCL and the like, but the loader must find every library it names, with every symbol in its
version. A stub has just these, and a call of one ends the process with its name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

DRIVER = "libcuda.so.1"  # named by a library alone that is loaded where there is a driver
_PREAMBLE = """\
#include <stdio.h>
#include <stdlib.h>
static void called(const char *name) {
    fprintf(stderr, "%s: a stub, in an image without CUDA\\n", name);
    abort();
}
"""


class Wanted(NamedTuple):
    """A symbol that a library takes from others; "" for both if it has no version."""

    name: str
    library: str
    version: str


def write_stubs(site_packages: Path, target: Path) -> list[Path]:
    """Writes a stub of each library that `torch` needs and neither wheel nor system has.

    Args:
        site_packages: where `torch` is installed.
        target: the folder for the stubs; made if absent.

    Returns:
        The stubs. CalledProcessError if the compiler refuses one.
    """
    users = sorted((site_packages / "torch" / "lib").glob("*.so"))
    libraries = sorted({name for user in users for name in not_found(user)} - {DRIVER})
    wanted = {symbol for user in users for symbol in undefined(user)}
    target.mkdir(parents=True, exist_ok=True)
    return [_compile(library, wanted, target) for library in libraries]


def not_found(path: Path) -> list[str]:
    """The libraries that the loader does not find for a library, or for one that it needs."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=True, timeout=60)
    return re.findall(r"^\s*(\S+) => not found", said.stdout, re.MULTILINE)


def undefined(path: Path) -> list[Wanted]:
    """The symbols that a library takes from others."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols, versions = (
            elf.get_section_by_name(".dynsym"),
            elf.get_section_by_name(".gnu.version"),
        )
        needs = elf.get_section_by_name(".gnu.version_r")
        assert isinstance(symbols, SymbolTableSection)
        assert isinstance(versions, GNUVerSymSection)
        assert isinstance(needs, GNUVerNeedSection)
        found = {
            version["vna_other"]: (str(library.name), str(version.name))
            for library, of_it in needs.iter_versions()
            for version in of_it
        }
        return [
            Wanted(symbol.name, *found.get(versions.get_symbol(number)["ndx"], ("", "")))
            for number, symbol in enumerate(symbols.iter_symbols())
            if symbol.name and symbol["st_shndx"] == "SHN_UNDEF"
        ]


def _compile(library: str, wanted: set[Wanted], target: Path) -> Path:
    # Symbols without a version name no library: NVIDIA's begin with its name, as in ncclSend.
    prefix = re.split(r"[._]", library.removeprefix("lib"))[0]
    by_version: dict[str, list[str]] = defaultdict(list)
    for symbol in sorted(wanted):
        if symbol.library == library or (not symbol.library and symbol.name.startswith(prefix)):
            by_version[symbol.version].append(symbol.name)
    names = sorted({name for names in by_version.values() for name in names})
    source, script, made = target / "stub.c", target / "stub.map", target / library
    source.write_text(_PREAMBLE + "".join(f'void {n}(void) {{ called("{n}"); }}\n' for n in names))
    by_version.pop("", None)  # a symbol that the script does not name keeps no version
    script.write_text(
        "".join(f"{v} {{ global: {'; '.join(own)}; }};\n" for v, own in by_version.items())
    )
    command: list[str | Path] = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", made]
    options = [f"-Wl,--version-script={script}"] if by_version else []
    subprocess.run([*command, *options, source], check=True, timeout=120)
    source.unlink()
    script.unlink()
    print(f"{library}: {len(names)} symbols")
    return made


if __name__ == "__main__":
    write_stubs(Path(sys.argv[1]), Path(sys.argv[2]))
