"""Measuring one load, or many of them one after the other with their figures in one file."""

import json
import logging
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcall_runtime.bench import recovery, shard_transfer, throughput
from rollcall_runtime.bench.host import available_memory, scratch_folder
from rollcall_runtime.bench.throughput import Load, Party
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.registry import AUTO, CPU, create_engine, engines, worker_device

log = logging.getLogger(__name__)

Figures = dict[str, Any]


def run(
    load: Load, folder: Path, *, kill_member: bool = False, naive: bool = False, parts: int = 0
) -> tuple[Figures, Figures]:
    """The figures of one load, and what they were made of. "{folder}" in the engine's settings
    stands for `folder`. `naive` adds to kills one after which the survivors wait until the engine
    itself gives up; `parts` adds what receivers read that need one of so many.

    Raises RuntimeError when the engine failed, or no victim died in mid-transfer, SpecError when
    the engine cannot be used here, and ValueError when there is no device to stage on.
    """
    if load.staging == throughput.DEVICE and worker_device() == CPU:
        raise ValueError("--staging device: torch finds no accelerator here")
    engine = create_engine(load.engine, device=worker_device())
    if load.engine == AUTO:
        load = replace(load, engine=engine.name)
    if parts and not engine.selective:
        raise ValueError(f"engine {engine.name!r} gives every receiver everything")
    load = replace(load, config=_placed(load.config, folder))
    try:
        return _run(load, folder, kill_member=kill_member, naive=naive, parts=parts)
    except (SyncError, TimeoutError) as error:
        raise RuntimeError(f"{load.engine}: {type(error).__name__}: {error}") from error


def _run(
    load: Load, folder: Path, *, kill_member: bool, naive: bool, parts: int
) -> tuple[Figures, Figures]:
    with load.open_world(_new(folder, "throughput")) as world:
        rounds, correct = throughput.measure(Party(load, world))
    figures = throughput.report(load, rounds, correct=correct)
    details = throughput.details(rounds)
    if parts:
        with load.open_world(_new(folder, "shards")) as world:
            turns = shard_transfer.measure(Party(load, world), parts)
        figures |= shard_transfer.report(turns, count=parts, nbytes=load.nbytes)
        figures["verified"] = figures["verified"] and turns.correct
        details |= shard_transfer.details(turns)
    if kill_member:
        with load.open_world(_new(folder, "recovery")) as world:
            scene = recovery.Scene(Party(recovery.survivors(load), world), world)
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


# --- many ---------------------------------------------------------------------------------------


def run_all(loads: Sequence[Load], data: Path) -> int:
    """Measure all loads and keep their figures in `data`; returns how many failed.

    Figures of earlier runs stay but for those that are measured anew. A load that fails, or for
    which there is not enough memory, is kept with its error.
    """
    data.parent.mkdir(parents=True, exist_ok=True)
    kept = {_key(case): case for case in read(data)}
    failed = 0
    for number, load in enumerate(loads, start=1):
        case = _measured(load)
        failed += "error" in case
        log.warning("%d of %d: %s", number, len(loads), json.dumps(case))
        kept[_key(case)] = case
        _write(data, kept.values())
    return failed


def _measured(load: Load) -> Figures:
    about = {
        "engine": load.engine,
        "receivers": load.receivers,
        "senders": load.senders,
        "bytes": load.nbytes,
        "rounds": load.rounds,
    }
    if load.memory > available_memory():
        return {**about, "error": f"needs about {load.memory >> 20} MiB of memory"}
    try:
        with scratch_folder() as folder:
            return run(load, folder)[0]
    except (RuntimeError, ValueError, OSError) as error:
        return {**about, "error": str(error)}


def _key(case: Figures) -> tuple[Any, ...]:
    return tuple(case[name] for name in ("engine", "bytes", "senders", "receivers"))


def read(data: Path) -> list[Figures]:
    """The figures in a file; none if there is no file."""
    if not data.exists():
        return []
    cases: list[Figures] = json.loads(data.read_text(encoding="utf-8"))["cases"]
    return cases


def _write(data: Path, cases: Iterable[Figures]) -> None:
    machine = {"cores": os.cpu_count(), "machine": platform.machine()}
    body = {**machine, "cases": sorted(cases, key=_key)}
    data.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
