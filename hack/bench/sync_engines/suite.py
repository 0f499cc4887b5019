"""Measures one bench case, or many of them one after the other."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hack.bench.sync_engines import check_costs, recovery, shard_transfer, throughput
from hack.bench.sync_engines.throughput import BenchCase, BenchGroup
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.registry import AUTO, create_engine, engines
from rollcall_runtime.worker.devices import CPU, worker_device

Figures = dict[str, Any]

_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")
_MEMINFO = Path("/proc/meminfo")


def run(
    load: BenchCase,
    folder: Path,
    *,
    kill_member: bool = False,
    naive: bool = False,
    parts: int = 0,
    checks: bool = False,
) -> tuple[Figures, Figures]:
    """The figures of one load, and what they were made of. "{folder}" in the engine's settings
    stands for `folder`. `naive` adds to kills one after which the survivors wait until the engine
    itself gives up; `parts` adds what receivers read that need one of so many; `checks` what it
    costs that they check it.

    Raises RuntimeError when the engine failed, or no victim died in mid-transfer, SpecError when
    the engine cannot be used here, and ValueError when memory is short, or no device to stage on.
    """
    if load.memory > available_memory():
        raise ValueError(
            f"{load.receivers} receivers of {load.nbytes} bytes need about {load.memory >> 20} MiB "
            f"of memory, and {available_memory() >> 20} MiB are free; choose a smaller --size"
        )
    if load.staging == throughput.DEVICE and worker_device() == CPU:
        raise ValueError("--staging device: torch finds no accelerator here")
    engine = create_engine(load.engine, device=worker_device())
    if load.engine == AUTO:
        load = replace(load, engine=engine.name)
    if parts and not engine.selective:
        raise ValueError(f"engine {engine.name!r} sends all buckets to every receiver")
    load = replace(load, config=_placed(load.config, folder))
    try:
        return _run(load, folder, kill_member=kill_member, naive=naive, parts=parts, checks=checks)
    except (SyncError, TimeoutError) as error:
        raise RuntimeError(f"{load.engine}: {type(error).__name__}: {error}") from error


def _run(
    load: BenchCase, folder: Path, *, kill_member: bool, naive: bool, parts: int, checks: bool
) -> tuple[Figures, Figures]:
    with load.start_processes(_new(folder, "throughput")) as processes:
        rounds, correct = throughput.measure(BenchGroup(load, processes))
    figures = throughput.report(load, rounds, correct=correct)
    details = throughput.details(rounds)
    if parts:
        with load.start_processes(_new(folder, "shards")) as processes:
            turns = shard_transfer.measure(BenchGroup(load, processes), parts)
        figures |= shard_transfer.report(turns, count=parts, nbytes=load.nbytes)
        figures["verified"] = figures["verified"] and turns.correct
        details |= shard_transfer.details(turns)
    if checks:
        with load.start_processes(_new(folder, "checks")) as processes:
            timings = check_costs.measure(BenchGroup(load, processes))
        figures |= check_costs.report(timings, load.nbytes)
    if kill_member:
        with load.start_processes(_new(folder, "recovery")) as processes:
            scene = recovery.KillTrials(BenchGroup(recovery.survivors(load), processes), processes)
            found = recovery.kills(scene, count=load.rounds)
            if naive:
                details["naive_seconds"] = recovery.naive_seconds(scene)
        if not found:
            raise RuntimeError("every transfer ended before its victim died; use a larger --size")
        figures |= recovery.report(found)
        details |= recovery.details(found)
    return figures, details


def _placed(config: Figures, folder: Path) -> Figures:
    """Settings in which {folder} stands for this run's own folder."""
    return {
        key: value.replace("{folder}", str(folder)) if isinstance(value, str) else value
        for key, value in config.items()
    }


def _new(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def usable_engines() -> tuple[str, ...]:
    """Names of the engines that can be used here."""
    return tuple(engine.name for engine in engines() if engine.available)


def measure_all(cases: Sequence[BenchCase]) -> Iterator[Figures]:
    """Measure all cases, one after the other; yields the figures of each.

    A case that fails, or that does not fit into memory, has its error instead.
    """
    for case in cases:
        yield _measured(case)


def _measured(case: BenchCase) -> Figures:
    about = {
        "engine": case.engine,
        "receivers": case.receivers,
        "senders": case.senders,
        "bytes": case.nbytes,
        "rounds": case.rounds,
    }
    try:
        with tempfile.TemporaryDirectory(prefix="rollcall-") as folder:
            return run(case, Path(folder))[0]
    except (RuntimeError, ValueError, OSError) as error:
        return {**about, "error": str(error)}


def available_memory() -> int:
    """Bytes that processes may still take here, within the container's limit."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    if _LIMIT.exists() and (limit := _LIMIT.read_text().strip()) != "max":
        free = min(free, int(limit) - int(_USED.read_text()))
    return free
