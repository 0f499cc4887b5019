"""Why engine kimi does not use the read of checkpoint-engine's P2PStore, in figures.

First the store's blocking read, in one thread and in four, beside reads asked of the TransferEngine
of the same store and looked after as the engine does, turn by turn: speed and the reader's CPU.
Then the source is stopped in a blocking read; when that has failed, the buffer is filled with a
pattern, the source goes on, and the bytes that no longer have the pattern are counted.

The last line is JSON: medians, speeds in GB (1e9 bytes) a second.
Run it with `python -m hack.bench.p2p_store_read`.
"""

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hack.bench.run_record import finish, run_record
from rollcall_plugins.transports.kimi.p2p_store import HostP2PStore, device_manager
from rollcall_runtime.sync.memory.buffers import HostBuffer

MIB = 1 << 20
OPERATION = 16 * MIB
FLYING = 4
SOURCE, READER = "127.0.0.2", "127.0.0.3"
PATTERN = 1
SHORTEST, LONGEST = 0.0001, 0.002  # seconds between two looks
DONE = 1


def opened(address: str, nbytes: int) -> tuple[HostP2PStore, HostBuffer]:
    """A store, and a buffer that is registered with it."""
    store = HostP2PStore(address, device_manager("cpu", protocol="tcp", names=""))
    buffer = HostBuffer(nbytes)
    store.register(buffer.address, nbytes)
    return store, buffer


def source(nbytes: int) -> None:
    """Let itself be read from until standard input ends."""
    store, buffer = opened(SOURCE, nbytes)
    sys.stdout.write(f"SOURCE {store.address} {buffer.address}\n")
    sys.stdout.flush()
    sys.stdin.read()


class Reader:
    """Two ways to read the whole of a source's buffer."""

    def __init__(self, nbytes: int, peer: str, remote: int) -> None:
        self.store, self.buffer = opened(READER, nbytes)
        self.peer, self.remote = peer, remote
        self._starts = range(0, nbytes, OPERATION)

    def block(self, start: int, nbytes: int) -> None:
        """The store's own read; AssertionError when it fails."""
        self.store._store.batch_transfer_sync_read(
            self.peer, [self.buffer.address + start], [self.remote + start], [nbytes]
        )

    def blocking(self, threads: int) -> None:
        """In several threads."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda start: self.block(start, OPERATION), self._starts))

    def asking(self) -> None:
        """A few reads in flight."""
        flying: deque[int] = deque()
        for start in self._starts:
            if len(flying) == FLYING:
                self._wait(flying.popleft())
            flying.append(
                self.store.transfers.batch_transfer_async_read(
                    self.peer, [self.buffer.address + start], [self.remote + start], [OPERATION]
                )
            )
        for batch in flying:
            self._wait(batch)

    def _wait(self, batch: int) -> None:
        rest = SHORTEST
        while (status := self.store.transfers.transfer_check_status(batch)) != DONE:
            if status < 0:
                raise RuntimeError(f"a read failed (status {status})")
            time.sleep(rest)
            rest = min(rest * 2, LONGEST)


def timed(read: Callable[[], None]) -> tuple[float, float]:
    """Seconds, and seconds of this process's CPU."""
    cpu, began = cpu_seconds(), time.monotonic()
    read()
    return time.monotonic() - began, cpu_seconds() - cpu


def cpu_seconds() -> float:
    """Of this process, until now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def stopped(reader: Reader, process: "subprocess.Popen[str]") -> dict[str, float]:
    """What a read leaves that fails because its source is stopped."""
    process.send_signal(signal.SIGSTOP)
    (began, cpu), failed = (time.monotonic(), cpu_seconds()), False
    try:
        reader.block(0, reader.buffer.nbytes)
    except AssertionError:
        failed = True
    seconds, busy = time.monotonic() - began, cpu_seconds() - cpu
    reader.buffer.memory[:] = bytes([PATTERN]) * reader.buffer.nbytes
    process.send_signal(signal.SIGCONT)
    time.sleep(2)
    kept = bytes(reader.buffer.memory).count(PATTERN)
    return {
        "failed": failed,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(busy, 2),
        "overwritten_bytes": reader.buffer.nbytes - kept,
    }


def measure(nbytes: int, rounds: int) -> dict[str, object]:
    """Everything, with a source in a process of its own."""
    os.environ.setdefault("MC_TRANSFER_TIMEOUT", "5")
    command = [sys.executable, "-m", "hack.bench.p2p_store_read", "--source", str(nbytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            found = (line.split() for line in process.stdout or () if line.startswith("SOURCE"))
            fields = next(found, None)
            if fields is None:
                raise RuntimeError("the source ended before it could be read from")
            reader = Reader(nbytes, fields[1], int(fields[2]))
            ways: dict[str, Callable[[], None]] = {
                "blocking_1": lambda: reader.blocking(1),
                "blocking_4": lambda: reader.blocking(FLYING),
                "asking_4": reader.asking,
            }
            took: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, read in ways.items():
                    took[way].append(timed(read))
            result: dict[str, object] = {
                way: {
                    "gbps": round(nbytes / 1e9 / statistics.median(one for one, _ in times), 2),
                    "cpu_seconds": round(statistics.median(cpu for _, cpu in times), 3),
                }
                for way, times in took.items()
            }
            return result | {"bytes": nbytes, "stopped": stopped(reader, process)}
        finally:
            process.kill()


def main() -> None:
    """Measure, or be the source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--source", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.source:
        source(args.source)
        return
    run = run_record(vars(args))
    finish("p2p-store-read", run, measure(args.mebibytes * MIB, args.rounds))


if __name__ == "__main__":
    main()
