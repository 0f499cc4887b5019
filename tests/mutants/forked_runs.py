"""Runs of tests in copies of the tree, each in a process that has torch already.

Importing torch and the Kubernetes client takes seconds of CPU time, which a hundred runs would
spend a hundred times: one process imports them, and each run is forked from it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import ForkServerProcess

RUN_TESTS = Path(__file__).with_name("run_tests.py")
SOURCES = ("operator", "workloads", ".")  # where packages are imported from, as pyproject.toml says
# Nothing of the project, which a copy has its own of, and nothing of which pytest rewrites asserts.
PRELOADED = (
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.testing",
    "aiohttp.web",
    "kubernetes.aio.client",
    "kopf",
)
OF_THE_PROJECT = ("rollcall", "tests", "hack", "__mp_main__")
RUN_SECONDS = 300.0  # of the tests of one file together
END_SECONDS = 30.0  # of a process that was killed
TEST_SECONDS = 120.0  # of one test

Found = Mapping[str, tuple[str, str]]  # a test's id: its outcome, and the message

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(list(PRELOADED))


class RunError(RuntimeError):
    """The tests came to no end, or could not be run; the message has their last output."""


class TestRuns:
    """Runs tests in trees, each run in a session of its own; `stop` ends all of them."""

    __test__ = False  # for pytest

    def __init__(self) -> None:
        self._running: set[ForkServerProcess] = set()
        self._stopped = False

    def run(self, tree: Path, tests: Sequence[str], *, timeout: float = TEST_SECONDS) -> Found:
        """The outcome and the message of each test that was collected, by its id. Raises RunError.

        `timeout` is in seconds, for each test.
        """
        with tempfile.TemporaryDirectory(prefix="mutant-run-") as folder:
            request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
            request.write_text(json.dumps({"tests": list(tests), "timeout": timeout}))
            bound = RUN_SECONDS * len({test.partition("::")[0] for test in tests})
            output = self._run(tree, request, answer, log=Path(folder, "log"), bound=bound)
            if not answer.exists():
                raise RunError(output.strip()[-2000:] or "no output")
            found: dict[str, list[str]] = json.loads(answer.read_text(encoding="utf-8"))
        return {node: (outcome, message) for node, (outcome, message) in found.items()}

    def stop(self) -> None:
        """End all that run, and begin no other."""
        self._stopped = True
        for process in tuple(self._running):
            _kill(process)

    def _run(self, tree: Path, request: Path, answer: Path, *, log: Path, bound: float) -> str:
        if self._stopped:
            raise RunError("stopped")
        process = _PROCESSES.Process(target=_run_tests, args=(tree, request, answer, log))
        process.start()
        self._running.add(process)
        try:
            process.join(bound)
            if process.is_alive():
                raise RunError(f"the tests did not end within {bound:.0f} s")
        finally:
            _kill(process)  # with what the tests have left behind
            process.join(END_SECONDS)
            self._running.discard(process)
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _kill(process: ForkServerProcess) -> None:
    process.kill()  # it may not have its session yet
    if process.pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _run_tests(tree: Path, request: Path, answer: Path, log: Path) -> None:
    """In the forked process: become the program `run_tests.py` in a copy of the tree."""
    os.setsid()
    gc.freeze()  # pytest looks for cycles five times at its end, in vain among what is imported
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(descriptor, stream)
    os.chdir(tree)
    os.environ["GIT_CEILING_DIRECTORIES"] = str(tree.parent)  # it is no part of a repository
    # Before the packages that the virtual environment has from the real tree.
    paths = [str(tree / source) for source in SOURCES]
    os.environ["PYTHONPATH"], sys.path[:0] = os.pathsep.join(paths), paths
    for name in list(sys.modules):
        if name.partition(".")[0] in {"tests", "hack", "__mp_main__"} or name.startswith(
            "rollcall"
        ):
            del sys.modules[name]
    sys.argv = [str(RUN_TESTS), str(request), str(answer)]
    runpy.run_path(str(RUN_TESTS), run_name="__main__")
