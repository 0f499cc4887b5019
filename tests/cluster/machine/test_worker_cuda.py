"""The image for NVIDIA GPUs: it is built here, and what it holds can be imported and loaded.

No machine of the project has a GPU. The driver's libraries are the node's, and are not there. What
was found is written to images/worker-cuda/contents.json.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import pytest

from hack.cluster import cache, docker_engine, images
from hack.cluster.errors import CommandError
from hack.test_parts import changes
from rollcall_protocol.pod_contract import ExitCode
from tests.process.pods import variables
from tests.unit.rollcall_runtime.jobs import job_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "worker-cuda"
CONTENTS = images.REPOSITORY_ROOT / "images" / NAME / "contents.json"
REQUIREMENTS = images.REPOSITORY_ROOT / "requirements" / f"{NAME}.txt"
CHECK = images.REPOSITORY_ROOT / "images" / "check_contents.py"
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-encode.so.1")
CHECK_SECONDS = 1500.0
BUILD_SECONDS = 2400.0
FROM_CACHE_MINUTES = 1.0
DISK_BYTES = 25e9
# By distribution: what need not load, since nothing of Rollcall uses it.
NOT_USED = {
    "nixl": ("import nixl_ep: *libcuda.so.1: cannot open*",),  # kernels of its own: the driver's
    "nixl-cu13": (
        "import nixl_ep_cu13: *libcuda.so.1: cannot open*",
        "load libred_client.so.2: *",  # plugins for storage and networks that are not here; NIXL
        "load libfabric.so.1: *",  # and UCX skip one whose libraries are not there
        "load libcuobjclient.so.1: *",
        "load libdoca_*",
        "load libefa.so.1: *",
        "load libibmad.so.5: *",
        "load libfile_utils.so: *",  # its plugins', beside them
        "load libobj_utils.so: *",
    ),
    "numba": ("load libtbb.so.12: *",),  # one of three thread pools
    "nvidia-cutlass-dsl-libs-cu13": ("load */stubs/aarch64-*",),  # for other processors
    "nvidia-nvshmem-cu13": (  # its bootstraps for MPI and SHMEM, its transports beside InfiniBand
        "load libmpi.so.40: *",
        "load libpmix.so.2: *",
        "load liboshmem.so.40: *",
        "load libfabric.so.1: *",
        "load libucs.so.0: *",
    ),
    "pynvvideocodec": (  # for videos
        "import PyNvVideoCodec: *libnvidia-encode.so.1: cannot open*",
        "load libXau-*",
        "load libxcb-*",
    ),
    "ray": ("load *libjemalloc.so: cannot allocate memory in static TLS block",),  # to be preloaded
    "reasoning-gym": (
        "import reasoning_gym: *'cellpylib'",
    ),  # the reward's own import has stand-ins
    "rollcall": (  # verl and AReaL want other versions
        "import rollcall.areal: *'areal'",
        "import rollcall.verl: *install verl*",
    ),
    "torchcodec": (  # one for each FFmpeg
        "load libavutil.so.*",
        "load libtorchcodec_core*",
        "load libheif.so.1: *",
    ),
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_SECONDS + CHECK_SECONDS + 300)]


@pytest.fixture(scope="module")
def engine() -> docker_engine.Engine:
    return images.engine()


@pytest.fixture(scope="module")
def built(engine: docker_engine.Engine) -> Iterator[tuple[str, float | None]]:
    """The image's name, and the minutes that its build took, if its packages were installed.

    It takes room that other parts need, so it goes with all that its build has left.
    """
    free = shutil.disk_usage(cache.root()).free
    assert free > DISK_BYTES, (
        f"its build takes {DISK_BYTES / 1e9:.0f} GB, and {free / 1e9:.0f} are free"
    )
    before = dangling(engine)
    began = time.monotonic()
    (full,) = images.build([NAME])
    assert full in engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}")
    minutes = round((time.monotonic() - began) / 60, 1)
    yield full, minutes if minutes > FROM_CACHE_MINUTES else None
    engine.docker("rmi", full, timeout_s=300)
    for left in dangling(engine) - before:
        with suppress(CommandError):  # a layer of another one that is still there
            engine.docker("rmi", left, timeout_s=300)


def dangling(engine: docker_engine.Engine) -> set[str]:
    """Images without a name, such as the stages of a build."""
    found = engine.docker("images", "--quiet", "--no-trunc", "--filter", "dangling=true")
    return set(found.split())


def in_image(
    engine: docker_engine.Engine, image: str, *command: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    words = ["docker", "run", "--rm", "--network=none", *options, image, *command]
    return subprocess.run(
        words,
        env=engine.full_env(),
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
        check=False,
    )


def test_all_in_it_can_be_imported_and_loaded(
    engine: docker_engine.Engine, built: tuple[str, float | None]
) -> None:
    image, minutes = built
    former = json.loads(CONTENTS.read_text(encoding="utf-8")) if CONTENTS.exists() else {}
    options = (f"--volume={CHECK}:/check_contents.py:ro",)
    found = in_image(engine, image, "python3", "/check_contents.py", *DRIVER, options=options)
    assert found.returncode == 0, found.stderr[-2000:]
    report: dict[str, Any] = json.loads(found.stdout)
    size = int(engine.docker("image", "inspect", "--format", "{{.Size}}", image))
    record = {
        "commit": changes.head(),
        "date": datetime.now(UTC).date().isoformat(),
        "requirements": hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest(),
        "gigabytes": round(size / 1e9, 1),
        "build_minutes": minutes or former.get("build_minutes"),
        **report,
    }
    CONTENTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    unexpected = [
        f"{name}: {problem}"
        for name, problems in report["problems"].items()
        for problem in problems
        if not any(fnmatch(problem, pattern) for pattern in NOT_USED.get(name, ()))
    ]
    assert unexpected == []
    assert report["libraries_that_need_the_driver"] > 0, "the check sees what is not there"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("rollcall-train", "engines"), ("fsdp2", "megatron", "torchtitan")),
        (("rollcall-sync", "engines"), ("nccl", "mooncake", "nixl", "kimi", "ray", "store")),
        # `vllm --version` looks for a device first.
        (("python3", "-c", "import vllm; print(vllm.__version__)"), ("0.32.",)),
        (("python3", "-c", "import rollcall.trl, trl; print(trl.GRPOTrainer)"), ("GRPOTrainer",)),
        (("id", "-u"), ("65532",)),
    ],
    ids=lambda value: value[0],
)
def test_its_programs_run(
    engine: docker_engine.Engine,
    built: tuple[str, float | None],
    command: tuple[str, ...],
    says: tuple[str, ...],
) -> None:
    ended = in_image(engine, built[0], *command)
    assert ended.returncode == 0, ended.stderr[-2000:]
    for words in says:
        assert words in ended.stdout


def test_a_worker_without_a_device_says_so_and_is_not_started_again(
    engine: docker_engine.Engine, built: tuple[str, float | None], tmp_path: Path
) -> None:
    config = job_config(model="builtin:reverse-tiny", trainer_device="auto")
    environment = variables(
        config, pod="p-0", uid="u", address="127.0.0.1", coordinator="127.0.0.1", folder=tmp_path
    )
    del environment["PATH"], environment["PYTHONPATH"]
    subprocess.run(["chmod", "-R", "a+rwX", str(tmp_path)], check=True)
    options = (
        f"--volume={tmp_path}:{tmp_path}",
        *(f"--env={k}={v}" for k, v in environment.items()),
    )
    ended = in_image(engine, built[0], "rollcall-trainer", options=options)
    assert ended.returncode == ExitCode.BAD_CONFIG
    assert "the image is built for CUDA 13" in ended.stdout + ended.stderr
