"""Memory of a publication, in the trainer's process and its coordinator's together."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from hack.bench.own_trainer.receiving_rollouts import receiving_rollouts, weights
from hack.bench.spreads import spread

SIZE = 768 << 20
_LOOK_SECONDS = 0.02


def held_bytes(*processes: int) -> int:
    """The proportional set size (PSS) of processes: memory that they share counts once."""
    found = 0
    for process in processes:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        found += next(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
    return found << 10


class _Peak:
    """The most that processes hold, looked at by a thread until `stop`."""

    def __init__(self, *processes: int) -> None:
        self.bytes = 0
        self._processes, self._over = processes, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        """The most so far."""
        self._over.set()
        self._thread.join()
        return self.bytes

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self.bytes = max(self.bytes, held_bytes(*self._processes))


async def publication_memory(rounds: int) -> dict[str, Any]:
    """Peaks beyond what there was with the model and the open library, over the weights' bytes.

    Of the first publication and of each later one.
    """
    model = await asyncio.to_thread(weights, SIZE)
    async with receiving_rollouts(1) as job:
        await job.happened("joined", *job.job.rollouts)  # they share libraries with these two
        processes = os.getpid(), job.rollcall.coordinator_pid
        before = held_bytes(*processes)
        ratios = []
        for number in range(rounds):
            peak = _Peak(*processes)
            await job.call(job.rollcall.publish, model, number)
            ratios.append((peak.stop() - before) / SIZE)
    return {"copies": spread(ratios), "first": ratios[0]}
