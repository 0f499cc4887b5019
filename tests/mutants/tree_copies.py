"""Copies of the tree, to put faults into, and the tests run in them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutants.mutant import Mutant

RUN_TESTS = Path(__file__).with_name("run_tests.py")
SOURCES = ("operator", "workloads", ".")  # where packages are imported from, as pyproject.toml says
RUN_SECONDS = 300.0  # of one mutant's tests together
TEST_SECONDS = 60.0  # of one test

Found = Mapping[str, tuple[str, str]]  # a test's id: its outcome, and the message


class PatchError(RuntimeError):
    """A patch does not apply; the message is git's."""


class RunError(RuntimeError):
    """The tests came to no end, or could not be run; the message has their last output."""


def copy_tree(root: Path, to: Path) -> Path:
    """Copy the files that git knows and those that it does not ignore, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for name in listing.stdout.split("\0"):
        if name and (root / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name, follow_symlinks=False)
    return to


def apply(mutant: Mutant, tree: Path) -> None:
    """Put the fault into a tree. Raises PatchError."""
    command = ["git", "apply", "--whitespace=nowarn", str(mutant.path)]
    environment = _environment(tree)
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PatchError(done.stderr.strip())
    for name in mutant.patched:
        # Compiled code goes by the source's time in whole seconds, and its size.
        for compiled in (tree / name).parent.glob(f"__pycache__/{Path(name).stem}.*.pyc"):
            compiled.unlink()


class TestRuns:
    """Runs tests in trees, each run in a process group of its own; `stop` ends all of them."""

    __test__ = False  # for pytest

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, tree: Path, tests: Sequence[str], *, timeout: float = TEST_SECONDS) -> Found:
        """What became of each test that was collected. Raises RunError."""
        with tempfile.TemporaryDirectory(prefix="mutant-run-") as folder:
            request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
            request.write_text(json.dumps({"tests": list(tests), "timeout": timeout}))
            command = [sys.executable, str(RUN_TESTS), str(request), str(answer)]
            output = self._run(command, tree=tree, log=Path(folder, "log"))
            if not answer.exists():
                raise RunError(output.strip()[-2000:] or "no output")
            found: dict[str, list[str]] = json.loads(answer.read_text(encoding="utf-8"))
        return {node: (outcome, message) for node, (outcome, message) in found.items()}

    def stop(self) -> None:
        """End all that run, and begin no other."""
        self._stopped = True
        for process in tuple(self._running):
            _kill(process)

    def _run(self, command: Sequence[str], *, tree: Path, log: Path) -> str:
        if self._stopped:
            raise RunError("stopped")
        with log.open("wb") as output:  # not a pipe: processes that tests leave behind hold it
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=_environment(tree),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._running.add(process)
        try:
            process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"the tests did not end within {RUN_SECONDS:.0f} s") from error
        finally:
            _kill(process)  # with what the tests have left behind
            process.wait()
            self._running.discard(process)
        return log.read_text(encoding="utf-8", errors="replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(tree: Path) -> dict[str, str]:
    """The copy comes before the packages that the virtual environment has from the real tree."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(str(tree / source) for source in SOURCES),
        "GIT_CEILING_DIRECTORIES": str(tree.parent),  # the copy is no part of a repository
    }
