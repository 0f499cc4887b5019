"""Each shared library that an image's wheels need is in the image, or its user is not loaded there.

The facts in requirements/shared-libraries.json come from the wheels' ELF headers, read by
`python -m hack.wheel_libraries`, which `make lock` runs.
"""

import fnmatch
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hack.wheel_libraries import ARCHITECTURES, FACTS, IMAGES, digest, missing_libraries

ROOT = Path(__file__).parents[3]

# By image: each library, and the package of the Dockerfile or the part of the base that has it.
PYTHON = {"libcrypto.so.3": "python3", "libssl.so.3": "python3", "libz.so.1": "python3"}
BASE = "the base"  # documented by its makers; these images are not built by the project
PROVIDED: dict[str, dict[str, str]] = {
    "operator": {},
    "worker-cpu": PYTHON
    | {
        "libcurl.so.4": "libcurl4t64",
        "libibverbs.so.1": "libibverbs1",
        "libnuma.so.1": "libnuma1",
    },
    "worker-ascend": {
        "libascendcl.so": BASE,  # CANN
        "libcurl.so.4": "libcurl4",
        "libibverbs.so.1": "libibverbs1",
        "libllm_datadist.so": BASE,
        "liblzma.so.5": "liblzma5",
        "libmetadef.so": BASE,
        "libnuma.so.1": "libnuma1",
    },
}

# Files that nothing of Rollcall loads, by image: plugins for hardware or storage that it does not
# use, and tools. NIXL and UCX skip a plugin whose libraries are not there.
_PLUGINS = (
    "*plugins/libplugin_GDS*.so",
    "*plugins/libplugin_GPUNETIO.so",
    "*plugins/libplugin_INFINIA.so",
    "*plugins/libplugin_LIBFABRIC.so",
    "*plugins/libtelemetry_exporter_doca.so",
    "*/nixl/libplugin_*.so",
    "*/nixl/libtelemetry_exporter_doca.so",
    "*/ucx/libucx_perftest_*.so.*",
    "*/ucx/libuct_ib_efa.so.*",
    "*/ucx/libuct_ib_mlx5_gdp.so.*",
)
NOT_LOADED: dict[str, tuple[str, ...]] = {
    "operator": (),
    "worker-cpu": (
        *_PLUGINS,
        "nixl_ep_cu12/*",
        "*/ucx/*cuda.so.*",
        "*/ucx/libuct_ib_mlx5_gda.so.*",
    ),
    "worker-ascend": (),
}
WHEELS = [(image, architecture) for image in IMAGES for architecture in ARCHITECTURES]


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """The committed file."""
    found: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
    return found


def without_library(facts: dict[str, Any], image: str, architecture: str) -> list[str]:
    """Lines "wheel: file needs library" for what the image lacks."""
    return [
        f"{wheel}: {file} needs {library}"
        for wheel, libraries in facts[image][architecture].items()
        for library, files in libraries.items()
        if library not in PROVIDED[image]
        for file in files
        if not any(fnmatch.fnmatch(file, pattern) for pattern in NOT_LOADED[image])
    ]


@pytest.mark.parametrize("image", IMAGES)
def test_the_facts_are_those_of_the_locked_requirements(facts: dict[str, Any], image: str) -> None:
    assert facts[image]["requirements"] == digest(IMAGES[image]), "run `make lock`"


@pytest.mark.parametrize(("image", "architecture"), WHEELS)
def test_the_image_has_what_its_wheels_need(
    facts: dict[str, Any], image: str, architecture: str
) -> None:
    assert without_library(facts, image, architecture) == []


@pytest.mark.parametrize("image", IMAGES)
def test_packages_that_provide_a_library_are_in_the_dockerfile(image: str) -> None:
    dockerfile = (ROOT / "images" / image / "Dockerfile").read_text(encoding="utf-8")
    installed = {word for line in dockerfile.splitlines() for word in line.split()}
    packages = set(PROVIDED[image].values()) - {BASE}
    assert packages <= installed


@pytest.mark.parametrize("image", IMAGES)
def test_no_entry_of_the_tables_is_out_of_date(facts: dict[str, Any], image: str) -> None:
    needed = {
        (library, file)
        for architecture in ARCHITECTURES
        for libraries in facts[image][architecture].values()
        for library, files in libraries.items()
        for file in files
    }
    assert set(PROVIDED[image]) <= {library for library, _ in needed}
    for pattern in NOT_LOADED[image]:
        assert any(fnmatch.fnmatch(file, pattern) for _, file in needed), pattern


def test_mooncakes_wheel_for_cuda_would_be_found_in_the_ascend_image() -> None:
    """The image held it once: it needs the CUDA runtime, and could not be imported."""
    needed = {"mooncake-transfer-engine==0.3.13": {"libcudart.so.12": ["mooncake/engine.so"]}}
    wrong = {"worker-ascend": {"x86_64": needed}}
    missing = without_library(wrong, "worker-ascend", "x86_64")
    assert any(line.endswith("needs libcudart.so.12") for line in missing)


def test_libraries_of_the_same_installation_count_as_found(tmp_path: Path) -> None:
    """One file needs two libraries, of which only one is there."""

    def link(name: str, *libraries: str) -> None:
        command = [
            "cc",
            "-shared",
            "-x",
            "c",
            "/dev/null",
            "-x",
            "none",
            "-o",
            str(tmp_path / name),
        ]
        flags = ["-Wl,--no-as-needed", f"-L{tmp_path}", *(f"-l:{library}" for library in libraries)]
        subprocess.run([*command, *flags], check=True, timeout=60)

    for name in ("libthere.so", "libgone.so"):
        link(name)
    link("user.so", "libthere.so", "libgone.so")
    (tmp_path / "libgone.so").unlink()
    record = tmp_path / "Some_Wheel-1.2.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("user.so,,\nlibthere.so,,\nabsent.py,,\n")
    assert missing_libraries(tmp_path) == {"some-wheel==1.2": {"libgone.so": ["user.so"]}}
