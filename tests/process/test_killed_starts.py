"""`rollcall local run` is killed at each step of its start: nothing is left, and the next works."""

import asyncio
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from rollcall_local.state_folder import StateFolder
from tests.process.harness import START_SECONDS
from tests.scenarios.job import example

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "killed"
GONE_SECONDS = 30.0
_LOOK_SECONDS = 0.002
_PROGRAM = "import sys; from rollcall_local.commands import main; sys.exit(main())"

Step = Callable[[StateFolder], bool]
STEPS: dict[str, Step] = {
    "its process runs": lambda _: True,
    "the folder is held": lambda folder: folder.holder() is not None,
    "torch is being imported": lambda folder: (folder.path / "runtime-0.log").exists(),
    "the API server has its certificate": lambda folder: folder.certificate.exists(),
    "the API server answers": lambda folder: folder.kubeconfig.exists(),
    "the job is applied": lambda folder: has(folder, f"objects/rljobs/*/{NAME}.json"),
    "the operator runs": lambda folder: written(folder, "operator.log"),
    "the operator has made children": lambda folder: has(folder, "objects/statefulsets/*/*"),
    "a pod has its volumes": lambda folder: has(folder, "pods/*/*/*/volumes"),
    "a container runs": lambda folder: has(folder, "pods/*/*/*/*.log"),
    "a trainer makes steps": lambda folder: b'"step ' in logged(folder),
}


def has(folder: StateFolder, pattern: str) -> bool:
    return any(folder.path.glob(pattern))


def written(folder: StateFolder, name: str) -> bool:
    file = folder.path / name
    return file.exists() and file.stat().st_size > 0


def logged(folder: StateFolder) -> bytes:
    return b"".join(file.read_bytes() for file in folder.path.glob("pods/*/*-trainer-0/*/*.log"))


def processes_of(home: Path) -> list[int]:
    """Those that have the folder of all runs in their environment: of the run, and of its pods."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if bytes(home) in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found


async def started(home: Path) -> asyncio.subprocess.Process:
    """A run of a job in a process; a former one has left what it had written."""
    file = home / "job.yaml"
    file.write_text(yaml.safe_dump(example("reverse.yaml", name=NAME)))
    for pattern in ("kubeconfig", "runtime-0.log", "operator.log", "pods/*/*/*/*.log"):
        for left in home.glob(f"{NAME}/{pattern}"):  # what a step is seen by
            left.unlink()
    with (home / "output").open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, "run", str(file)),
            env={**os.environ, "ROLLCALL_LOCAL_HOME": str(home)},
            stdout=out,
            stderr=out,
        )


async def until(holds: Callable[[], object], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(_LOOK_SECONDS)


async def test_a_start_that_is_killed_at_any_step_leaves_no_process_and_the_next_one_works(
    tmp_path: Path,
) -> None:
    folder = StateFolder(tmp_path / NAME)
    for name, step in STEPS.items():
        process = await started(tmp_path)
        await until(functools.partial(step, folder), seconds=START_SECONDS)
        assert process.returncode is None, f"{name}: {(tmp_path / 'output').read_text()}"
        process.kill()
        await process.wait()
        await until(lambda: not processes_of(tmp_path), seconds=GONE_SECONDS)
    process = await started(tmp_path)
    await until(lambda: b'"step ' in logged(folder), seconds=START_SECONDS)
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), GONE_SECONDS) == 130
    assert processes_of(tmp_path) == []
    assert "Traceback" not in (tmp_path / "output").read_text()
