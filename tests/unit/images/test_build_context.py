"""What a Dockerfile copies is there, and .dockerignore lets it into the build context."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKERFILES = sorted([*ROOT.glob("images/*/Dockerfile"), *ROOT.glob("tests/images/*/Dockerfile")])
LET_IN = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]


def copied(dockerfile: Path) -> list[str]:
    """Sources of each COPY from the build context, as the Dockerfile writes them."""
    text = dockerfile.read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.startswith("COPY ")]
    flags_and_sources = [words[1:-1] for words in lines if not any("--from" in w for w in words)]
    return [word for words in flags_and_sources for word in words if not word.startswith("--")]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_what_is_copied_is_in_the_build_context(dockerfile: Path) -> None:
    sources = copied(dockerfile)
    assert sources
    for source in sources:
        assert list(ROOT.glob(source)), f"{source} does not exist"
        assert any(f"{source}/".startswith(f"{each}/") for each in LET_IN), source


def test_the_wheel_is_built_from_a_context_without_the_examples(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    protocol = Path("workloads", "rollcall_protocol")
    shutil.copytree(ROOT / protocol, tmp_path / protocol)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("out/*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "rollcall_protocol/__init__.py" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rollcall", "rollcall_protocol"}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_runs_as_a_user_who_is_not_root(path: Path) -> None:
    """The operator's pods do (`runAsNonRoot`): the kubelet starts no other, and takes no name."""
    last = path.read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    users = [line.split()[1] for line in last.splitlines() if line.startswith("USER ")]
    assert users == ["65532:65532"]
