"""The sides of a comparison: each has ranks, which are processes of their own.

Only one side computes at a time. A request is a JSON object, and so is its reply.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.bench.training.random_rows import RandomRows
from hack.free_ports import free_port

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from hack.bench.training.engine_loop import EngineLoop
    from hack.bench.training.plain_loop import PlainLoop

SECONDS = 300.0  # for one reply of a rank


@dataclass(frozen=True, slots=True)
class Side:
    """How a side trains `model`, a directory with a model of `architecture`.

    `engine` is the name of a training engine, with `settings` beside the default, or empty for the
    plain loop. `threads`: of each of its `ranks`.
    """

    model: str
    architecture: str
    engine: str = ""
    ranks: int = 1
    threads: int = 1
    learning_rate: float = 1e-4
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SideStep:
    """One step: seconds of the slowest rank, processor seconds of all ranks, and the mean loss."""

    seconds: float
    cpu_seconds: float
    loss: float


class SideProcesses:
    """The processes of one side. They end when this object is closed."""

    def __init__(self, side: Side, rows: RandomRows) -> None:
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self._ranks: list[tuple[SpawnProcess, Connection]] = []
        for rank in range(side.ranks):
            ours, theirs = context.Pipe()
            setup = json.dumps({"side": asdict(side), "rows": asdict(rows), "port": port})
            process = context.Process(target=_serve, args=(setup, rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        self.memory_before = self._replies()

    def step(self, number: int) -> SideStep:
        """Train on batch `number`."""
        seconds, cpu_seconds, losses = zip(*self._do("step", number), strict=True)
        return SideStep(max(seconds), sum(cpu_seconds), sum(losses) / len(losses))

    def peak_memory(self) -> list[int]:
        """Of each rank: the most bytes of its process that were resident at once."""
        return self._do("peak", 0)

    def close(self) -> None:
        for _, connection in self._ranks:
            connection.close()
        for process, _ in self._ranks:
            process.join(10)
            if process.is_alive():
                process.kill()

    def _do(self, command: str, number: int) -> list[Any]:
        for _, connection in self._ranks:
            connection.send_bytes(json.dumps([command, number]).encode())
        return self._replies()

    def _replies(self) -> list[Any]:
        """Every rank's reply. RuntimeError if one fails or gives none in time."""
        found = []
        for rank, (process, connection) in enumerate(self._ranks):
            if not connection.poll(SECONDS):
                raise RuntimeError(f"rank {rank} gave no reply in {SECONDS:g} s")
            try:
                found.append(json.loads(connection.recv_bytes()))
            except EOFError as error:
                process.join(10)
                problem = f"rank {rank} ended with code {process.exitcode}; its error is above"
                raise RuntimeError(problem) from error
        return found


def _serve(setup: str, rank: int, requests: Connection) -> None:
    """What a rank's process runs: answer requests until the other end closes.

    The first reply is how many bytes were resident before the model was loaded.
    """
    values = json.loads(setup)
    side, rows = Side(**values["side"]), RandomRows(**values["rows"])
    before, loop = _open(side, rank, values["port"])
    requests.send_bytes(json.dumps(before).encode())
    while True:
        try:
            command, number = json.loads(requests.recv_bytes())
        except EOFError:
            return
        if command == "peak":
            requests.send_bytes(json.dumps(_resident("VmHWM")).encode())
            continue
        batch = rows.batch(number)
        began, used = time.perf_counter(), time.process_time()
        loss = loop.step(batch)
        reply = [time.perf_counter() - began, time.process_time() - used, loss]
        requests.send_bytes(json.dumps(reply).encode())


def _open(side: Side, rank: int, port: int) -> tuple[int, PlainLoop | EngineLoop]:
    """Bytes that are resident after the imports, and what trains."""
    import_module(f"transformers.models.{side.architecture}.modeling_{side.architecture}")
    # Each side imports what it needs alone, as that is a part of its memory.
    if side.engine:
        from hack.bench.training.engine_loop import EngineLoop  # noqa: PLC0415

        before = _resident("VmRSS")
        return before, EngineLoop(
            Path(side.model),
            engine=side.engine,
            rank=rank,
            ranks=side.ranks,
            port=port,
            threads=side.threads,
            learning_rate=side.learning_rate,
            settings=side.settings,
        )
    from hack.bench.training.plain_loop import PlainLoop  # noqa: PLC0415

    before = _resident("VmRSS")
    return before, PlainLoop(
        Path(side.model),
        rank=rank,
        ranks=side.ranks,
        port=port,
        threads=side.threads,
        learning_rate=side.learning_rate,
    )


def _resident(name: str) -> int:
    """Bytes, by the kernel's account of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not report {name}")
