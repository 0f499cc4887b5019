"""Runs make targets of the committed tree in a minimal Debian root; prints time and peak disk.

Exit status 1 when one failed, or when something was left on the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import cache
from hack.cluster.errors import ClusterError, explain
from hack.cluster.progress import say
from hack.fresh import debian_root, namespace
from hack.usual_time import duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

README_TARGETS = ("demo", "test")
LOOK_EVERY_S = 10.0
LOOK_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One make target, as it went: `disk` is the most that the root took, in bytes."""

    target: str
    status: int
    seconds: float
    disk: int

    def line(self) -> str:
        """One line for a terminal: target, duration, gigabytes on the disk, verdict."""
        verdict = "passed" if self.status == 0 else f"FAILED with exit status {self.status}"
        took = duration(self.seconds)
        return f"make {self.target:<14} {took:>13} {self.disk / 1e9:8.1f} GB at most  {verdict}"


def run_targets(targets: Sequence[str], *, with_caches: bool) -> list[Outcome]:
    """Runs them one after the other in a new root, then `make cluster-down`."""
    namespace.sweep()
    if debian_root.uncommitted():
        say("the work tree has changes that are not committed: they are not part of this")
    folder = namespace.PARENT / f"{namespace.PREFIX}{os.getpid()}"
    caches = {namespace.ROLLCALL: cache.root(), "uv": _uv_cache()} if with_caches else {}
    environment = debian_root.environment(namespace.home_of(folder))
    with namespace.Namespaces(folder, caches=caches) as inside:
        clone = f"cd && git -c advice.detachedHead=0 clone --quiet {debian_root.BUNDLE} rollcall"
        if inside.run(clone, environment=environment):
            raise ClusterError("the committed tree could not be cloned in the new root")
        return [_run(inside, target, environment) for target in (*targets, "cluster-down")]


def _run(inside: namespace.Namespaces, target: str, environment: Mapping[str, str]) -> Outcome:
    say(f"make {target}, in {inside.folder}")
    began = time.monotonic()
    with _PeakDisk(inside.folder) as disk:
        status = inside.run(f"cd ~/rollcall && exec make {target}", environment=environment)
    outcome = Outcome(target, status, time.monotonic() - began, disk.most)
    say(outcome.line())
    return outcome


class _PeakDisk:
    """Looks every few seconds how much of the disk a folder takes."""

    def __init__(self, folder: Path) -> None:
        self.most = 0
        self._folder, self._over = folder, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _PeakDisk:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            # Files may vanish meanwhile, which du counts as a failure.
            words: list[str | Path] = [
                "du",
                "--summarize",
                "--one-file-system",
                "--block-size=1",
                self._folder,
            ]
            try:
                said = subprocess.run(
                    words, capture_output=True, text=True, check=False, timeout=LOOK_WITHIN_S
                ).stdout
            except subprocess.TimeoutExpired:
                said = ""  # the disk is busy: the next look counts
            if said:
                self.most = max(self.most, int(said.split()[0]))
            if self._over.wait(LOOK_EVERY_S):
                return


def _uv_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    named = os.environ.get("UV_CACHE_DIR")
    return Path(named) if named else (Path(base) if base else Path.home() / ".cache") / "uv"


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hack.fresh", description=__doc__)
    parser.add_argument("--caches", action="store_true", help="hand in the machine's, read-only")
    parser.add_argument("target", nargs="*", default=README_TARGETS, help="of the Makefile")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("error: making a root and entering it takes root", file=sys.stderr)
        return 1
    try:
        outcomes = run_targets(options.target, with_caches=options.caches)
    except (ClusterError, OSError) as error:
        print(explain(error, log=cache.keep_output(error)), file=sys.stderr)
        return 1
    print("\n".join(outcome.line() for outcome in outcomes))
    return 1 if any(outcome.status for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
