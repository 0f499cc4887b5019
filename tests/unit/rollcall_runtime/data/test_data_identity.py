"""What is another data set than that of a checkpoint, and what is not."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.data.data_identity import DataIdentity
from rollcall_runtime.data.prompt_source import check_prompts
from tests.unit.rollcall_runtime.data.character_tokenizer import character_model

CHATS: list[dict[str, Any]] = [
    {"prompt": [{"role": "user", "content": f"number {number}"}]} for number in range(100)
]


def written(path: Path, rows: list[Any]) -> DataConfig:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig((DataSource(str(path)),))


def identity(data: DataConfig) -> DataIdentity:
    return check_prompts(data, model=character_model(), sampling=SamplingConfig())


def test_the_same_rows_are_the_same_data_in_another_file_or_container(tmp_path: Path) -> None:
    before = identity(written(tmp_path / "a.jsonl", CHATS))
    with_more = [row | {"answer": 1} for row in CHATS]
    turned = [{"prompt": [dict(reversed(row["prompt"][0].items()))]} for row in CHATS]
    for name, rows in (("a.jsonl", CHATS), ("b.jsonl", with_more), ("c.parquet", turned)):
        assert identity(written(tmp_path / name, rows)).changes_since(before) == ""


def test_other_rows_are_other_data(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    before = identity(written(path, CHATS))
    for rows, change in (
        (CHATS[:-1], f"'{path}' has 99 rows, and had 100"),
        (CHATS[::-1], f"'{path}' has other rows than it had"),
        (CHATS[:-1] + CHATS[:1], f"'{path}' has other rows than it had"),
    ):
        assert identity(written(path, rows)).changes_since(before) == change
    other = tmp_path / "b.jsonl"
    change = f"'{other}', of 3 rows, takes the place of '{path}', of 100"
    assert identity(written(other, CHATS[:3])).changes_since(before) == change


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 3}, "seed is 3, and was 0"),
        ({"weights": (1, 2)}, "'{b}' has weight 2, and had 1"),
        ({"weights": (1,)}, "the number of sources is 1, and was 2"),
    ],
)
def test_another_order_is_other_data(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        written(file, CHATS)

    def mixed(weights: tuple[int, ...] = (1, 1), seed: int = 0) -> DataIdentity:
        pairs = zip(files, weights, strict=False)
        sources = tuple(DataSource(str(file), weight=weight) for file, weight in pairs)
        return identity(DataConfig(sources, seed=seed))

    assert mixed(**changes).changes_since(mixed()) == said.format(b=files[1])


def test_builtin_rows_are_known_by_name_and_seed() -> None:
    before, again = (identity(DataConfig((DataSource("builtin:reverse"),))) for _ in range(2))
    letters = identity(DataConfig((DataSource("builtin:first-letter"),)))
    assert again.changes_since(before) == ""
    said = "'builtin:first-letter' takes the place of 'builtin:reverse'"
    assert letters.changes_since(before) == said
