"""A library whose libraries are gone loads with stubs of them, in the versions that it names."""

import subprocess
import sys
from pathlib import Path

import pytest

from images.cuda_stubs import write_stubs

# Its functions have a version in libcublas and none in libnccl, as with NVIDIA's.
USER = """\
void cublasCreate_v2(void); void cublasGemm(void); void ncclSend(void);
void use(int which) {
    void (*functions[])(void) = {cublasCreate_v2, cublasGemm, ncclSend};
    functions[which]();
}
"""
ORIGINALS = {
    "libcublas.so.13": (
        "void cublasCreate_v2(void) {} void cublasGemm(void) {}",
        "libcublas.so.13 { global: cublasCreate_v2; cublasGemm; };",
    ),
    "libnccl.so.2": ("void ncclSend(void) {}", ""),
}


def compile_library(path: Path, source: str, *options: str) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *options]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """With a `torch` whose two libraries are gone."""
    folder = tmp_path / "site-packages" / "torch" / "lib"
    folder.mkdir(parents=True)
    for name, (source, versions) in ORIGINALS.items():
        script = tmp_path / "versions.map"
        script.write_text(versions)
        options = [f"-Wl,--version-script={script}"] if versions else []
        compile_library(tmp_path / name, source, f"-Wl,-soname,{name}", *options)
    links = [f"-L{tmp_path}", *(f"-l:{name}" for name in ORIGINALS)]
    compile_library(folder / "libtorch_cuda.so", USER, "-x", "none", *links)
    for name in ORIGINALS:
        (tmp_path / name).unlink()
    return tmp_path / "site-packages"


def call(site_packages: Path, stubs: Path, which: int) -> "subprocess.CompletedProcess[str]":
    """Loads the user with all its symbols, as Python does, and calls one of its functions."""
    program = (
        "import ctypes, os, sys\n"
        "user = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)\n"
        "print('loaded', flush=True)\n"
        "user.use(int(sys.argv[2]))\n"
    )
    library = site_packages / "torch" / "lib" / "libtorch_cuda.so"
    return subprocess.run(
        [sys.executable, "-c", program, str(library), str(which)],
        env={"LD_LIBRARY_PATH": str(stubs)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_library_loads_and_a_call_of_a_stub_ends_the_process_with_its_name(
    site_packages: Path, tmp_path: Path
) -> None:
    assert "cannot open shared object" in call(site_packages, tmp_path / "none", 0).stderr
    made = write_stubs(site_packages, tmp_path / "stubs")
    assert sorted(path.name for path in made) == sorted(ORIGINALS)
    for which, name in enumerate(("cublasCreate_v2", "cublasGemm", "ncclSend")):
        done = call(site_packages, tmp_path / "stubs", which)
        assert done.stdout == "loaded\n"
        assert f"{name}: a stub" in done.stderr
        assert done.returncode < 0


def test_nothing_but_stubs_is_left_in_the_folder(site_packages: Path, tmp_path: Path) -> None:
    write_stubs(site_packages, tmp_path / "stubs")
    assert {path.name for path in (tmp_path / "stubs").iterdir()} == set(ORIGINALS)
