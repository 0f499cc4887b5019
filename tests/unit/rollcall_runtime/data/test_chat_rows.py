"""A text prompt becomes a chat where the source asks for one."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_runtime.data.prompt_source import open_prompts
from rollcall_runtime.data.templated_rows import open_source
from tests.unit.rollcall_runtime.data.character_tokenizer import character_model

FIELD = "spec.data.sources[0].name"
SYSTEM = {"role": "system", "content": "be brief"}


def source(folder: Path, row: dict[str, Any], **settings: Any) -> DataSource:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return DataSource(str(path), chat=True, **settings)


def test_the_text_is_a_user_s_turn_after_the_system_s(tmp_path: Path) -> None:
    asked = source(tmp_path, {"question": "why", "answer": "so"}, column="question")
    assert open_source(asked, field=FIELD).row(0) == {
        "question": [{"role": "user", "content": "why"}],
        "answer": "so",
    }
    asked = source(tmp_path, {"a": 1, "b": 2}, template="{a} + {b}", system="be brief")
    rows = open_source(asked, field=FIELD)
    chat = [SYSTEM, {"role": "user", "content": "1 + 2"}]
    assert rows.row(0) == {"a": 1, "b": 2, "prompt": chat}
    assert [row["prompt"] for row in rows.scan(["prompt"])] == [chat]


def test_a_completion_is_the_assistant_s_turn(tmp_path: Path) -> None:
    row = open_source(source(tmp_path, {"prompt": "a", "completion": "b"}), field=FIELD).row(0)
    assert row["completion"] == [{"role": "assistant", "content": "b"}]


def test_a_prompt_that_is_a_chat_stays_as_it_is(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}]}
    assert open_source(source(tmp_path, row, system="be brief"), field=FIELD).row(0) == row


def test_questions_of_reasoning_gym_go_through_the_chat_template() -> None:
    gym = DataSource("builtin:reasoning-gym/chain_sum", chat=True, system="add")
    model = character_model(context=4096)
    prompt = open_prompts(DataConfig((gym,)), model=model).prompt(0)
    assert prompt is not None
    assert prompt.row is not None
    chat = [
        {"role": "system", "content": "add"},
        {"role": "user", "content": prompt.row["question"]},
    ]
    text = model.chat_text(chat, answer_follows=True, place="", field="")
    assert list(prompt.tokens) == model.tokenizer.encode(text)


def test_a_system_s_turn_needs_a_chat() -> None:
    with pytest.raises(ValueError, match="system needs chat: true"):
        DataSource("/d.jsonl", system="be brief")
