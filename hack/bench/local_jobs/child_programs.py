"""Programs that a measurement starts and waits for, with their processor time."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SECONDS = 300.0
_IMPORT = "import torch, time; print(time.time())"


@dataclass(frozen=True, slots=True)
class Took:
    """Wall time and processor time, in seconds."""

    seconds: float
    cpu_seconds: float


def answer(words: Sequence[str], environment: Mapping[str, str]) -> Took:
    """A program of Python's from its start to its end; CalledProcessError unless that is 0."""
    before, began = _cpu_seconds(), time.time()
    subprocess.run(
        [sys.executable, *words],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS,
    )
    return Took(time.time() - began, _cpu_seconds() - before)


def bare_imports(count: int) -> Took:
    """So many interpreters that import torch, from the last one's start until all have done so.

    With one thread each, as the example's pods have.
    """
    before = _cpu_seconds()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = []
    for _ in range(count):
        began = time.time()
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", _IMPORT], env=environment, stdout=subprocess.PIPE, text=True
            )
        )
    try:
        ends = [float(process.communicate(timeout=SECONDS)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return Took(max(ends) - began, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
