"""One data set gives the same rows, whichever container holds it."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_runtime.data.open_rows import open_rows
from rollcall_runtime.data.prompt_source import open_prompts
from rollcall_runtime.data.supervised_rows import LabelledSequence, open_supervised
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.data.character_tokenizer import character_model, no_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rollcall_runtime.data.row_mix import RowMix

FIELD = "spec.data.prompts"
TOOL_TEMPLATE = """\
{%- for tool in tools or [] -%}[{{ tool | tojson }}]{%- endfor -%}
{%- for message in messages -%}
<|im_start|>{{ message['role'] + '\n' }}{{ message['content'] or '' }}
{%- for call in message['tool_calls'] or [] -%}{{ call['function'] | tojson }}{%- endfor -%}
<|im_end|>{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\n' }}{%- endif -%}
"""


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": properties}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CHATS: list[dict[str, Any]] = [
    {"messages": [user("a"), call("f", city="Rome")], "tools": [tool("f", city="text")]},
    {"messages": [user("b"), call("g", n=3, deep={"k": 1})], "tools": [tool("g", n="number")]},
    {"messages": [user("c"), call("g", n=3, deep={"j": None})], "tools": None},
    {"messages": [user("d"), call("h")]},
]
PROMPTS: list[dict[str, Any]] = [
    {"prompt": "one", "info": {"a": 1, "list": [None, 2]}, "answer": "1"},
    {"prompt": "two", "info": {"b": [{"c": 1}, {"d": None}]}, "answer": None},
    {"prompt": "three"},
]


def jsonl(folder: Path, rows: Sequence[Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def marked(folder: Path, rows: Sequence[Any]) -> Path:
    path = jsonl(folder, rows)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    return path


def packed(folder: Path, rows: Sequence[Any]) -> Path:
    path = folder / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(folder, rows).read_bytes()))
    return path


def json_lines(folder: Path, rows: Sequence[Any]) -> Path:
    return jsonl(folder, rows).rename(folder / "rows.json")


def json_array(folder: Path, rows: Sequence[Any]) -> Path:
    path = folder / "rows.json"
    path.write_bytes(codecs.BOM_UTF8 + json.dumps(rows, indent=1).encode())
    return path


def parquet_file(folder: Path, rows: Sequence[Any]) -> Path:
    path = folder / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(everywhere(rows)), path)
    return path


def everywhere(rows: Sequence[Any]) -> list[Any]:
    """Arrow takes the columns of the first row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [dict.fromkeys(names) | row for row in rows]


def saved(folder: Path, rows: Sequence[Any]) -> Path:
    import datasets  # noqa: PLC0415 - takes seconds

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(everywhere(rows)).save_to_disk(folder / "saved")
    return folder / "saved"


def saved_as_json(folder: Path, rows: Sequence[Any]) -> Path:
    """Objects of different keys as texts of JSON, as `datasets` stores those of JSON files."""
    import datasets  # noqa: PLC0415

    jsonl(folder, everywhere(rows))  # `datasets` needs that all rows have all columns
    found = datasets.load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train")
    found.save_to_disk(folder / "saved")
    return folder / "saved"


def parquet_of_json(folder: Path, rows: Sequence[Any]) -> Path:
    import datasets  # noqa: PLC0415

    found = datasets.load_from_disk(saved_as_json(folder, rows))
    found.to_parquet(folder / "json.parquet")
    return folder / "json.parquet"


def folder_of(write: Callable[[Path, Sequence[Any]], Path]) -> Callable[..., Path]:
    """Two files of half of the rows."""

    def written(folder: Path, rows: Sequence[Any]) -> Path:
        (folder / "files").mkdir()
        for place, part in enumerate((rows[:2], rows[2:])):
            file = write(folder, part)
            file.rename(folder / "files" / f"train-{place}{''.join(file.suffixes)}")
        return folder / "files"

    return written


QUICK = [jsonl, marked, packed, json_lines, json_array, parquet_file]
BY_DATASETS = [
    pytest.param(saved, id="saved"),
    pytest.param(saved_as_json, id="saved_as_json"),
    pytest.param(parquet_of_json, id="parquet_of_json"),
    pytest.param(folder_of(jsonl), id="folder_of_jsonl"),
    pytest.param(folder_of(packed), id="folder_of_packed"),
    pytest.param(folder_of(json_array), id="folder_of_json"),
    pytest.param(folder_of(parquet_file), id="folder_of_parquet"),
]
CONTAINERS = [
    *(pytest.param(write, id=write.__name__) for write in QUICK),
    *(pytest.param(*each.values, id=each.id, marks=pytest.mark.slow) for each in BY_DATASETS),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow"):
        import datasets  # noqa: PLC0415

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def chats(path: Path) -> RowMix[LabelledSequence]:
    data = DataConfig((DataSource(str(path)),))
    return open_supervised(data, model=character_model(TOOL_TEMPLATE, context=2000))


def text(row: LabelledSequence | None) -> str:
    assert row is not None
    return character_model().tokenizer.decode(row.tokens, special=True)


@pytest.mark.parametrize("write", CONTAINERS)
def test_chats_with_tools_are_learnt_alike(
    write: Callable[[Path, Sequence[Any]], Path], tmp_path: Path
) -> None:
    rows = chats(write(tmp_path, CHATS))
    assert len(rows) == 4
    texts = sorted(text(rows.item(number)) for number in range(4))
    assert not any("null" in each for each in texts)
    assert '{"name": "f", "arguments": {"city": "Rome"}}' in "".join(texts)
    assert '"parameters": {"city": "text"}}' in "".join(texts)
    assert '"arguments": {"n": 3, "deep": {}}' in "".join(texts)


@pytest.mark.parametrize("write", CONTAINERS)
def test_a_reward_function_gets_the_same_rows(
    write: Callable[[Path, Sequence[Any]], Path], tmp_path: Path
) -> None:
    data = DataConfig((DataSource(str(write(tmp_path, PROMPTS))),))
    source = open_prompts(data, model=character_model())
    found = [source.prompt(number) for number in range(3)]
    rows = {prompt.row["prompt"]: prompt.row for prompt in found if prompt and prompt.row}
    assert rows == {
        "one": {"prompt": "one", "info": {"a": 1, "list": [None, 2]}, "answer": "1"},
        "two": {"prompt": "two", "info": {"b": [{"c": 1}, {}]}, "answer": None},
        "three": {"prompt": "three", "info": None, "answer": None},
    }


def csv_file(folder: Path, rows: Sequence[Any]) -> Path:
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def packed_csv(folder: Path, rows: Sequence[Any]) -> Path:
    path = folder / "rows.csv.gz"
    path.write_bytes(gzip.compress(csv_file(folder, rows).read_bytes()))
    return path


@pytest.mark.parametrize(
    "write",
    [csv_file, packed_csv, pytest.param(folder_of(csv_file), marks=pytest.mark.slow, id="folder")],
)
def test_a_csv_file_holds_rows_of_texts(
    write: Callable[[Path, Sequence[Any]], Path], tmp_path: Path
) -> None:
    rows = [
        {"prompt": 'two\n"lines", é', "completion": "007", "note": ""},
        {"prompt": "1+1=", "completion": "2", "note": "NA"},
        {"prompt": "x" * 200_000, "completion": "True", "note": "nan"},
    ]
    found = open_rows(DataSource(str(write(tmp_path, rows))), field=FIELD)
    assert [found.row(number) for number in range(3)] == rows
    assert list(found.scan(["note"])) == rows
    assert found.place(1).endswith(("rows.csv, row 2", "rows.csv.gz, row 2", "train-0.csv, row 2"))


WRONG: list[tuple[str, bytes, str]] = [
    ("p.jsonl", '{"a": 1}'.encode("utf-16"), r"p.jsonl' is UTF-16 or UTF-32; save it as UTF-8"),
    ("p.jsonl", '{"a": 1}'.encode("utf-16-be"), r"p.jsonl' is UTF-16 or UTF-32; save it as UTF-8"),
    (
        "p.csv",
        b"a\ncaf\xe9\n",
        "p.csv: not UTF-8: 'utf-8' codec can't decode byte 0xe9 .*; save it as UTF-8",
    ),
    (
        "p.jsonl",
        gzip.compress(b'{"a": 1}', mtime=0),
        r"p.jsonl' is packed; unpack it, or name gzip's .js",
    ),
    ("p.jsonl", bz2.compress(b'{"a": 1}'), r"p.jsonl' is packed; unpack it"),
    ("p.jsonl.gz", b'{"a": 1}', "p.jsonl.gz' is no whole gzip file"),
    ("p.json", b"[1]", "p.json, row 1: wants an object, not a int"),
    ("p.json", b'[{"a": 1}', "p.json: not JSON: .*; correct it"),
    ("p.json", b'{\n"a": 1}', "p.json:1: not JSON: .* write one array of all rows, or each row on"),
    ("p.csv", b"a,b\n1\n", "p.csv:2: 1 cells, where the header has 2; correct it"),
    ("p.csv", b"a,a\n1,2\n", "p.csv:1: two columns have one name; rename one"),
    ("p.csv", b"prompt, answer\nhi,4\n", "p.csv:1: the column ' answer' begins or ends with a"),
    ("p.csv", b'a\n"x', "p.csv:2: not CSV: unexpected end of data; correct it"),
    ("p.csv", b"a\n", "p.csv' holds no row"),
    ("p.jsonl.gz", gzip.compress(b'{"a": 1}', mtime=0)[:-9], "p.jsonl.gz' is no whole gzip file"),
    (
        "p.txt",
        b"hello",
        "p.txt' is of no kind that can be read; give a file that ends in .parquet, ",
    ),
    ("p.jsonl.zst", b"hello", "p.jsonl.zst' is of no kind that can be read"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError, match=f"^{FIELD}: .*{message}"):
        list(open_rows(DataSource(str(tmp_path / name)), field=FIELD).scan(["a"]))


@pytest.mark.parametrize("name", ["p.json", "p.csv", "p.jsonl.gz", "p.parquet", "p.txt", "folder"])
def test_what_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match=rf"cannot read '{tmp_path}/{name}': .*is it mounted\?"):
        open_rows(DataSource(str(tmp_path / name)), field=FIELD)


def test_a_chat_in_a_csv_file_is_refused(tmp_path: Path) -> None:
    path = csv_file(tmp_path, [{"messages": json.dumps(CHATS[0]["messages"])}])
    with pytest.raises(
        SpecError, match=r"row 1: messages: holds a chat as text; give a list of me"
    ):
        open_prompts(DataConfig((DataSource(str(path)),)), model=no_tokenizer())


def test_maps_of_a_table_are_objects(tmp_path: Path) -> None:
    column = pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int64()))
    parquet.write_table(pa.table({"info": column}), tmp_path / "p.parquet")
    rows = open_rows(DataSource(str(tmp_path / "p.parquet")), field=FIELD)
    assert list(rows.scan(["info"])) == [{"info": {"a": 1}}, {"info": {}}]
