"""Rows of Parquet files and of data sets on the disk."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rollcall_protocol.data_config import DataSource
from rollcall_runtime.data.arrow_rows import open_parquet
from rollcall_runtime.data.open_rows import open_rows
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.data.prompts"
ROWS: list[dict[str, Any]] = [
    {"prompt": "one", "answer": 1, "tags": ["a"]},
    {"prompt": "two", "answer": None, "tags": []},
    {"prompt": "three", "answer": 3, "tags": None},
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    return path


def opened(name: object, **source: Any) -> Any:
    return open_rows(DataSource(str(name), **source), field=FIELD)


def test_parquet_rows_by_number_and_in_their_order(table: Path) -> None:
    rows = opened(table)
    assert len(rows) == 3
    assert [rows.row(i) for i in (2, 0, 1)] == [ROWS[2], ROWS[0], ROWS[1]]
    assert list(rows.scan(["answer"])) == [{"answer": row["answer"]} for row in ROWS]
    assert rows.columns == ("prompt", "answer", "tags")
    assert rows.place(2) == f"{table}, row 3"


def test_a_parquet_file_that_cannot_be_used_is_named(table: Path, tmp_path: Path) -> None:
    whole = table.read_bytes()
    for name, content in (("torn", whole[: len(whole) // 2]), ("text", b"hello"), ("empty", b"")):
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(content)
        with pytest.raises(SpecError, match=rf"{name}.parquet' is no whole Parquet file"):
            opened(path)
    with pytest.raises(SpecError, match=r"cannot read .*none.parquet'.*is it mounted\?"):
        opened(tmp_path / "none.parquet")


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    with pytest.raises(SpecError, match=r"rows.parquet' holds no row"):
        opened(path)
    (tmp_path / "rows.jsonl").write_text("\n \n")
    with pytest.raises(SpecError, match=r"rows.jsonl' holds no row"):
        opened(tmp_path / "rows.jsonl")


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in an image without pyarrow and datasets."""
    for name in ("pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    return iter(())


@pytest.mark.usefixtures("no_package")
def test_a_package_that_the_image_lacks_is_named() -> None:
    with pytest.raises(SpecError, match="needs the package pyarrow, which this image lacks"):
        opened("/data/rows.parquet")
    with pytest.raises(SpecError, match="'org/prompts' needs the package datasets"):
        opened("org/prompts")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that `datasets` saved, with two splits."""
    import datasets  # noqa: PLC0415 - takes seconds

    folder = tmp_path_factory.mktemp("saved")
    datasets.disable_progress_bars()
    whole = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": whole.select([2, 0]), "test": whole}).save_to_disk(folder)
    whole.save_to_disk(folder / "one")
    return folder


@pytest.mark.slow
def test_a_directory_that_datasets_saved(saved: Path) -> None:
    rows = opened(saved)
    assert [rows.row(i) for i in range(len(rows))] == [ROWS[2], ROWS[0]]
    assert list(rows.scan(["prompt"])) == [{"prompt": "three"}, {"prompt": "one"}]
    assert len(opened(saved, split="test")) == 3
    assert len(opened(saved / "one")) == 3
    with pytest.raises(SpecError, match="has no split 'dev'; it has test, train"):
        opened(saved, split="dev")


@pytest.mark.slow
def test_a_directory_of_files_that_datasets_can_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets  # noqa: PLC0415

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    rows = opened(folder)
    assert [rows.row(i)["prompt"] for i in range(2)] == ["one", "two"]


@pytest.mark.slow
def test_an_id_that_is_not_in_the_cache_is_refused_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets  # noqa: PLC0415
    import huggingface_hub.constants  # noqa: PLC0415

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(SpecError, match=r"cannot load .* 'org/prompts': .*HF_HUB_OFFLINE"):
        opened("org/prompts")


TWICE = pa.array([[("k", "x")], [("k", "x"), ("k", "y")]], pa.map_(pa.string(), pa.string()))
LATIN_1 = pa.array([b"a", b"caf\xe9"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (TWICE, "duplicate key was 'k'"),
        (LATIN_1, "codec can't decode byte 0xe9"),
        (pa.array([0, 12_000_000], pa.date32()), ""),
    ],
    ids=["a_key_twice", "no_utf_8", "a_far_date"],
)
def test_a_value_that_python_does_not_have_names_its_row(
    tmp_path: Path, column: Any, message: str
) -> None:
    parquet.write_table(pa.table({"a": column}), tmp_path / "p.parquet")
    rows = open_parquet(tmp_path / "p.parquet", field=FIELD)
    for read in (lambda: rows.row(1), lambda: list(rows.scan(["a"]))):
        with pytest.raises(
            SpecError, match=f"p.parquet, row 2: a value cannot be read: .*{message}"
        ):
            read()


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    parquet.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(SpecError, match=r"p.parquet' has two columns of one name: prompt; rename"):
        open_parquet(tmp_path / "p.parquet", field=FIELD)


def test_files_of_a_folder_that_no_split_has_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`datasets` reads files of one kind, and says nothing of the others."""
    (tmp_path / "train-0.jsonl").write_text('{"prompt": "a"}\n')
    parquet.write_table(pa.table({"prompt": ["b"]}), tmp_path / "train-1.parquet")
    open_rows(DataSource(str(tmp_path)), field=FIELD)
    assert "of these files of the folder no split has rows: train-0.jsonl; give" in caplog.text
    (tmp_path / "train-0.jsonl").unlink()
    caplog.clear()
    open_rows(DataSource(str(tmp_path)), field=FIELD)
    assert not caplog.text
