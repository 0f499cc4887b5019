"""What a container writes: its logs, and its last words."""

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
