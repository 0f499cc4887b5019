"""A fresh process that resumes from a checkpoint does what one without a break does, bit by bit."""

import multiprocessing
from pathlib import Path

import pytest
import torch

from hack.free_ports import free_port
from tests.unit.rollcall_runtime.train.engines import resuming

pytestmark = pytest.mark.slow

SECONDS = 100  # for all processes, imports included


def run(folder: Path, *, size: int, last: int) -> list[resuming.Figures]:
    """Train to step `last` in fresh processes; the figures of each rank."""
    assert exit_codes(folder, size=size, last=last) == [0] * size
    return [torch.load(resuming.figures_file(folder, rank)) for rank in range(size)]


def exit_codes(folder: Path, *, size: int, last: int) -> list[int | None]:
    folder.mkdir(exist_ok=True)
    # As the trainer does, its processes end without taking the interpreter down.
    server, port = multiprocessing.get_context("forkserver"), free_port()
    ranks = [
        server.Process(target=resuming.main, args=(rank, size, port, folder, 3, last))
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(SECONDS)
        return [process.exitcode for process in ranks]
    finally:
        for process in ranks:
            process.kill()


@pytest.mark.parametrize("size", [1, 2])
def test_resumed_losses_are_those_of_a_run_without_a_break(tmp_path: Path, size: int) -> None:
    expected = run(tmp_path / "whole", size=size, last=6)
    before = run(tmp_path / "broken", size=size, last=4)  # saved at 3, step 4 is lost
    after = run(tmp_path / "broken", size=size, last=6)
    for rank in range(size):
        assert before[rank] == [row for row in expected[rank] if row[0] <= 4]
        assert after[rank] == [row for row in expected[rank] if row[0] >= 4]
    if size > 1:
        assert expected[0][-1][3] != expected[1][-1][3], "each rank has its own generator"


def test_no_rank_waits_for_one_that_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("where a folder should be")
    assert exit_codes(tmp_path, size=2, last=3) == [1, 1]
