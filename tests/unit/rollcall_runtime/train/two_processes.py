"""Two trainer ranks as processes, which write what they found into a folder."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

from hack.free_ports import free_port


def run_two_ranks(main: Callable[[int, int, Path], None], folder: Path, *, seconds: float) -> None:
    """Run `main(rank, port, folder)` for both ranks; AssertionError unless both end well in time.

    As in the trainer, the processes end without taking the interpreter down.
    """
    server, port = multiprocessing.get_context("forkserver"), free_port()
    server.set_forkserver_preload([main.__module__])  # imports torch once
    ranks = [server.Process(target=main, args=(rank, port, folder)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(seconds)
        assert [process.exitcode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
