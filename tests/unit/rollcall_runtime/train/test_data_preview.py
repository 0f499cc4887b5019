"""What `rollcall-train data` shows: rows in the order of training, as the model sees them."""

import json
from pathlib import Path

from rollcall_protocol.data_config import DataConfig, DataSource, TooLong
from rollcall_runtime.train.data_preview import as_text, preview_prompts, preview_supervised
from tests.unit.rollcall_runtime.data.character_tokenizer import character_model, no_tokenizer


def data(path: Path, *rows: object, **config: object) -> DataConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig((DataSource(str(path)),), **config)  # type: ignore[arg-type]


def test_prompts_with_place_text_tokens_and_row(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "answer": 2}
    (row,) = preview_prompts(data(tmp_path / "p.jsonl", chat), character_model(), count=1)
    assert row.as_json()["length"] == len(row.tokens) == 21
    assert as_text(row).split("\n")[:4] == [
        f"0: {tmp_path}/p.jsonl:1: used, 21 tokens",
        "  | <|im_start|>user",
        "  | hi<|im_end|>",
        "  | <|im_start|>assistant",
    ]
    assert "'answer': 2" in as_text(row)


def test_rows_that_are_left_out_or_cut_are_marked(tmp_path: Path) -> None:
    rows = ({"tokens": [1, 2, 3]}, {"tokens": [4]})
    for policy, outcome in ((TooLong.DROP, "left out"), (TooLong.TRUNCATE_LEFT, "truncated")):
        config = data(tmp_path / "p.jsonl", *rows, max_tokens=2, too_long=policy)
        found = preview_prompts(config, no_tokenizer(), count=2)
        assert sorted(row.outcome for row in found) == sorted([outcome, "used"])


def test_supervised_rows_show_what_is_learnt(tmp_path: Path) -> None:
    config = data(tmp_path / "p.jsonl", {"prompt": "2+2=", "completion": "4"})
    (row,) = preview_supervised(config, character_model(), count=1)
    assert row.learnt == ["4<|im_end|>"]
    assert "learnt: '4<|im_end|>'" in as_text(row)


def test_the_built_in_prompts_have_no_file() -> None:
    config = DataConfig((DataSource("builtin:reverse"),))
    first, second = preview_prompts(config, no_tokenizer(), count=2)
    assert (first.place, second.place) == ("builtin:reverse, number 0", "builtin:reverse, number 1")
