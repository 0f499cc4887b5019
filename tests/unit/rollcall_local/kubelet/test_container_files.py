"""What a container writes: its logs, and its last words."""

import json
import os
from pathlib import Path

import pytest

from rollcall_local.kubelet.container_files import ContainerFiles


@pytest.fixture
def files(tmp_path: Path) -> ContainerFiles:
    return ContainerFiles(tmp_path, "worker")


def test_the_output_is_that_of_the_newest_run_that_has_written_something(
    files: ContainerFiles,
) -> None:
    assert files.output(None) == b""
    for run in range(12):
        files.log(run).write_text(f"run {run}\n")
    files.log(12).write_text("")
    ContainerFiles(files.folder, "worker-2").log(99).write_text("another's")
    assert files.output(None) == b"run 11\n"


@pytest.mark.parametrize(
    ("lines", "output"), [(None, b"a\nb\nc"), (2, b"b\nc"), (5, b"a\nb\nc"), (0, b"")]
)
def test_the_last_lines_alone_are_read_if_so_many_are_asked_for(
    files: ContainerFiles, lines: int | None, output: bytes
) -> None:
    files.log(0).write_text("a\nb\nc")
    assert files.output(lines) == output


@pytest.mark.parametrize(("since", "output"), [(0.0, "abcd"), (2.0, "bcd"), (3.0, "d"), (4.0, "")])
def test_lines_from_before_a_time_are_left_out(
    files: ContainerFiles, since: float, output: str
) -> None:
    first, second, last = (
        json.dumps({"time": f"1970-01-01T00:00:0{seconds}Z", "message": name})
        for seconds, name in ((1, "a"), (2, "b"), (3, "d"))
    )
    files.log(0).write_text(f"{first}\n{second}\nc\n{last}\n")
    found = files.output(None, since=since).decode()
    assert (
        "".join(name for name in "abcd" if f'"{name}"' in found or f"{name}\n" in found) == output
    )


def test_lines_that_say_no_time_are_as_old_as_their_file(files: ContainerFiles) -> None:
    files.log(0).write_text("a\nb\n")
    os.utime(files.log(0), (100, 100))
    assert files.output(1, since=100.0) == b"b\n"
    assert files.output(1, since=101.0) == b""


def test_last_words_are_those_that_it_has_said(files: ContainerFiles) -> None:
    files.log(0).write_text("log")
    assert files.last_words(0, or_log=False) == ""
    files.message.write_text("x" * 5000)
    assert files.last_words(0, or_log=True) == "x" * 4096


def test_the_end_of_its_log_has_80_lines_and_2048_bytes_at_most(files: ContainerFiles) -> None:
    files.log(3).write_text("".join(f"{number}\n" for number in range(1000)))
    assert files.last_words(3, or_log=True).splitlines() == [str(n) for n in range(920, 1000)]
    files.log(3).write_text("a" * 10_000 + "\nlast")
    assert files.last_words(3, or_log=True) == "a" * 2043 + "\nlast"
    assert files.last_words(4, or_log=True) == ""


def test_words_that_are_no_text_are_shown_as_they_can_be(files: ContainerFiles) -> None:
    files.message.write_bytes(b"\xff!")
    assert files.last_words(0, or_log=False) == "\ufffd!"
