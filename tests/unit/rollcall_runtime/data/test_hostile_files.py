"""Files of rows that others made to harm: each ends in one message, in bounded time and memory."""

import gzip
import json
import os
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rollcall_protocol.data_config import DataSource
from rollcall_runtime.data import json_lines, text_files, unpacked_size
from rollcall_runtime.data.open_rows import open_rows
from rollcall_runtime.worker import contained_files
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.data.prompts"


def refusal(name: object, **source: Any) -> str:
    with pytest.raises(SpecError) as caught:
        open_rows(DataSource(str(name), **source), field=FIELD)
    assert caught.value.field == FIELD
    return caught.value.problem


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test needs no hundreds of MiB."""
    monkeypatch.setattr(unpacked_size, "FREE", 1 << 18)
    monkeypatch.setattr(json_lines, "MAX_LINE", 1 << 20)
    monkeypatch.setattr(text_files, "MAX_CELL", 1 << 20)
    monkeypatch.setattr(text_files, "MAX_ARRAY", 4 << 20)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz"])
@pytest.mark.parametrize("make", [pipe, socket_file, device])
def test_what_is_no_file_is_not_read(
    tmp_path: Path, make: Callable[[Path], None], suffix: str
) -> None:
    path = tmp_path / f"rows{suffix}"
    make(path)
    assert refusal(path) == (f"'{path}' is no file but a pipe, a socket or a device; name a file")


def test_a_directory_with_a_files_name_is_read_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    assert "cannot load the data set" in refusal(tmp_path / "rows.jsonl")


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("rows.jsonl.gz", b"\n" * 16),
        ("rows.jsonl.gz", b'{"prompt": "a"}\n'),
        ("rows.json.gz", b"[" + b" " * 16),
        ("rows.csv.gz", b"prompt\n"),
    ],
)
def test_a_file_that_unpacks_to_far_more_than_any_data_is_refused(
    tmp_path: Path, name: str, line: bytes
) -> None:
    with gzip.open(tmp_path / name, "wb") as file:
        file.write(line * 100_000)
    assert "unpacks to more than 200 times its" in refusal(tmp_path / name)


def test_a_parquet_file_that_repeats_one_value_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked_size, "FREE", 4 << 20)
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"prompt": ["x" * 500] * 100_000}), path)
    assert path.stat().st_size < 1 << 14
    assert "unpacks to more than 200 times its" in refusal(path)


def test_a_parquet_file_is_read_as_it_is_whatever_its_groups(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{"prompt": f"text {number}", "tags": ["a"] * (number % 3)} for number in range(1000)]
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=300)
    read = open_rows(DataSource(str(path)), field=FIELD)
    assert list(read.scan(["prompt", "tags"])) == rows
    assert read.row(999) == rows[999]


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.json"])
def test_a_line_without_end_is_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        assert "the line has more than 1048576" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("small_bounds")
def test_an_array_larger_than_what_is_read_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(b"[" + b" " * (5 << 20) + b"]")
    assert "an array of more than 4194304 bytes is not read" in refusal(path)


def test_a_folder_reads_its_own_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contained_files, "volume_of", lambda _: tmp_path)
    secret = tmp_path / "outside.txt"
    secret.write_text("secret\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    for named in ("../outside.txt", str(secret)):
        (folder / "README.md").write_text(
            f"---\nconfigs:\n- config_name: default\n  data_files: {named}\n---\n"
        )
        assert f"is outside of '{folder}'" in refusal(folder)


def test_links_in_a_folder_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "outside.jsonl").write_text('{"prompt": "secret"}\n')
    folder = tmp_path / "folder"
    folder.mkdir()
    link = folder / "train.jsonl"
    link.symlink_to("../outside.jsonl")
    assert f"'{link}' leads to '{tmp_path / 'outside.jsonl'}', outside of" in refusal(folder)
    (folder / "kept").mkdir()
    (folder / "kept" / "rows.jsonl").write_text('{"prompt": "own"}\n')
    link.unlink()
    link.symlink_to("kept/rows.jsonl")
    assert open_rows(DataSource(str(link)), field=FIELD).row(0) == {"prompt": "own"}


def test_a_link_out_of_a_volume_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "token.csv").write_text("secret\n")
    link = volume / "rows.csv"
    link.symlink_to(tmp_path / "token.csv")
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) in {volume, Path("/")})
    assert f"outside of '{volume}'" in refusal(link)


@pytest.mark.parametrize("state", ["state.json", "dataset_dict.json"])
def test_a_saved_data_set_has_its_own_files_alone(tmp_path: Path, state: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "rows.arrow").write_bytes(b"")
    folder = tmp_path / "saved"
    folder.mkdir()
    content = {"_data_files": [{"filename": "../outside/rows.arrow"}], "splits": ["../outside"]}
    (folder / state).write_text(json.dumps(content))
    assert "outside" in refusal(folder)
    assert "names" in refusal(folder)


def test_a_loading_script_is_not_run(tmp_path: Path) -> None:
    folder, ran = tmp_path / "folder", tmp_path / "ran"
    folder.mkdir()
    (folder / "folder.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    assert "cannot load the data set" in refusal(folder)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["rows.zip", "rows.tar", "rows.pkl", "rows.jsonl.zst"])
def test_a_container_that_is_not_known_is_not_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 or any")
    assert "is of no kind that can be read" in refusal(tmp_path / name)
    assert refusal(tmp_path)
