"""Rows of a JSON Lines file by number, with the line of each."""

import tracemalloc
from pathlib import Path

import pytest

from rollcall_runtime.data.json_lines import JsonLines
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.data.prompts"


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def opened(tmp_path: Path, text: str | bytes) -> JsonLines:
    return JsonLines(written(tmp_path, text), field=FIELD)


def test_rows_by_number_and_in_their_order(tmp_path: Path) -> None:
    rows = opened(tmp_path, '{"a": 1}\n\n  \n{"a": "é"}\n{"a": [3]}')
    assert len(rows) == 3
    assert [rows.row(i) for i in (2, 0, 1)] == [{"a": [3]}, {"a": 1}, {"a": "é"}]
    assert list(rows.scan(["a"])) == [rows.row(i) for i in range(3)]
    assert rows.columns == ("a",)


def test_a_place_is_the_files_line_empty_lines_included(tmp_path: Path) -> None:
    rows = opened(tmp_path, '\n{"a": 1}\r\n\n{"a": 2}\n')
    assert [rows.place(i) for i in range(2)] == [f"{tmp_path}/rows.jsonl:{n}" for n in (2, 4)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1', "rows.jsonl:2: not JSON: "),
        ("[1]", "rows.jsonl:2: wants an object, not a list"),
        (b'{"a": "\xff"}', "rows.jsonl:2: not JSON: 'utf-8' codec"),
        ("[" * 100_000, "rows.jsonl:2: not JSON: "),
        (
            '{"a": ' + "[" * 900 + "{}" + "]" * 900 + "}",
            "rows.jsonl:2: not JSON: maximum recursion",
        ),
        (
            '{"a": 1} {"a": 2}',
            "rows.jsonl:2: not JSON: there is more behind its end, from character",
        ),
        (
            r'{"a": [{"content": "\uD83d"}]}',
            r"rows.jsonl:2: not text: '\\ud83d' is half of a surrogate pair; correct it",
        ),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str | bytes, message: str) -> None:
    broken = line.encode() if isinstance(line, str) else line
    rows = opened(tmp_path, b'{"a": 1}\n' + broken + b'\n{"a": 2}\n')
    with pytest.raises(SpecError, match=message) as caught:
        list(rows.scan(["a"]))
    assert caught.value.field == FIELD
    assert rows.row(2) == {"a": 2}


def test_a_whole_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    assert opened(tmp_path, r'{"a": "\ud83d\ude00"}').row(0) == {"a": "\N{GRINNING FACE}"}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read '.*none.jsonl': .*; is it mounted\?"):
        JsonLines(tmp_path / "none.jsonl", field=FIELD)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(SpecError, match=r"cannot read '.*folder.jsonl': .*directory"):
        JsonLines(tmp_path / "folder.jsonl", field=FIELD)


def test_a_file_that_is_replaced_stays_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    rows = opened(tmp_path, '{"a": 1}\n')
    (tmp_path / "new.jsonl").write_text('{"a": 2}\n')
    (tmp_path / "new.jsonl").replace(tmp_path / "rows.jsonl")
    assert rows.row(0) == {"a": 1}


def test_the_file_is_closed_once_and_closing_again_is_harmless(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    rows = opened(tmp_path, '{"a": 1}\n')
    rows.close()
    rows.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_memory_is_an_index_and_no_objects(tmp_path: Path) -> None:
    path = written(tmp_path, '{"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n' * 50_000)
    tracemalloc.start()
    try:
        rows = JsonLines(path, field=FIELD)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows) == 50_000
    assert held < 20 * 50_000, "16 bytes a row, and what an array has in reserve"


def test_many_rows_are_scanned_as_they_are_read_one_by_one(tmp_path: Path) -> None:
    """Small rows are read many at a time, and a large one beside them whole."""
    sizes = [*range(1, 400), 300_000, *range(400)]
    text = "\n".join(f'{{"a": "{"x" * size}"}}' + "\n" * (size % 3) for size in sizes)
    rows = opened(tmp_path, text)
    assert [len(row["a"]) for row in rows.scan(["a"])] == sizes
    assert [len(rows.row(number)["a"]) for number in range(len(rows))] == sizes
