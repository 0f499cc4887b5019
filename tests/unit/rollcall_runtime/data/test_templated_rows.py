"""A template makes the text of a prompt of a row's columns."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.data_config import DataSource
from rollcall_runtime.data.rows import Rows
from rollcall_runtime.data.templated_rows import open_source
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.data.sources[0].name"


def opened(folder: Path, template: str, *rows: dict[str, Any], column: str = "") -> Rows:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_source(DataSource(str(path), column=column, template=template), field=FIELD)


def test_names_between_braces_stand_for_columns(tmp_path: Path) -> None:
    rows = opened(tmp_path, "2 + 3 = 5\n{a} + {b} = {{", {"a": "1", "b": 4}, {"a": "2", "b": 5})
    assert rows.row(1) == {"a": "2", "b": 5, "prompt": "2 + 3 = 5\n2 + 5 = {"}
    assert [row["prompt"][-9:] for row in rows.scan(["prompt"])] == ["1 + 4 = {", "2 + 5 = {"]
    assert rows.columns == ("a", "b", "prompt")
    assert len(rows) == 2


def test_a_value_with_braces_is_put_in_as_it_is(tmp_path: Path) -> None:
    assert opened(tmp_path, "{a}!", {"a": "{b}"}).row(0)["prompt"] == "{b}!"


def test_the_text_may_replace_a_column_of_the_file(tmp_path: Path) -> None:
    rows = opened(tmp_path, "Q: {question}", {"question": "why"}, column="question")
    assert rows.row(0) == {"question": "Q: why"}


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{task}", "template: there is no column 'task'; there are a, question"),
        ("{", "template: "),
        ("{a!r}", "template: only the name of a column may stand between braces"),
        ("{a:5}", "template: only the name of a column may stand between braces"),
        ("{a.real}", "template: there is no column 'a.real'"),
        ("{}", "template: there is no column ''"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(
    tmp_path: Path, template: str, problem: str
) -> None:
    with pytest.raises(SpecError) as caught:
        opened(tmp_path, template, {"question": "why", "a": 1})
    assert caught.value.field == FIELD
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize(
    ("row", "problem"),
    [({}, "there is no column 'a', which the template"), ({"a": None}, "a holds None; a template")],
)
def test_a_row_that_cannot_fill_it_is_named(
    tmp_path: Path, row: dict[str, Any], problem: str
) -> None:
    rows = opened(tmp_path, "{a}", {"a": 1}, row)
    with pytest.raises(SpecError, match=f"rows.jsonl:2: {problem}"):
        rows.row(1)
