"""Rows for supervised training: what is read, and what is learnt of it."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers.models import BPE

from rollcall_protocol.data_config import DataConfig, DataSource, TooLong
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.data.row_mix import RowMix
from rollcall_runtime.data.supervised_rows import LabelledSequence, open_supervised
from rollcall_runtime.models.tokenizer import ModelTokenizer
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import CHAT_TEMPLATE, tiny_tokenizer
from tests.unit.rollcall_runtime.data.character_tokenizer import (
    END,
    MARKED,
    START,
    appending_model,
    character_model,
    no_tokenizer,
    trimming_model,
)

TOOLS = "{{ tools | tojson }}"
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "yes"}


def opened(
    tmp_path: Path, *rows: Any, model: ModelInput | None = None, **data: Any
) -> RowMix[LabelledSequence]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(sources=(DataSource(str(path)),), **data)
    return open_supervised(config, model=model or character_model())


def learnt(row: LabelledSequence | None) -> str:
    assert row is not None
    tokens = [token for token, mark in zip(row.tokens, row.learnt, strict=True) if mark]
    return character_model().tokenizer.decode(tokens, special=True)


def test_of_a_chat_the_assistants_turns_are_learnt(tmp_path: Path) -> None:
    rows = opened(tmp_path, {"messages": [USER, ASSISTANT, USER, ASSISTANT]})
    assert learnt(rows.item(0)) == "yes<|im_end|>yes<|im_end|>"


def test_of_a_chat_with_a_completion_only_that_is_learnt(tmp_path: Path) -> None:
    row = {"prompt": [USER, ASSISTANT, USER], "completion": [ASSISTANT]}
    assert learnt(opened(tmp_path, row).item(0)) == "yes<|im_end|>"


def test_of_a_text_the_completion_is_learnt_and_that_it_ends(tmp_path: Path) -> None:
    row = opened(tmp_path, {"prompt": "2+2=", "completion": "4"}).item(0)
    assert learnt(row) == "4<|im_end|>"
    assert row is not None
    assert (len(row.tokens), row.tokens[-1]) == (6, END)


def test_a_word_that_shares_a_token_with_the_prompts_last_space_is_learnt(tmp_path: Path) -> None:
    """As tokenizers of byte pairs join a space and the word behind it."""
    model = character_model()
    backend = cast("Any", model.tokenizer.library).backend_tokenizer
    backend.model = BPE(vocab={**backend.get_vocab(), " 4": 200}, merges=[(" ", "4")])
    row = opened(tmp_path, {"prompt": "2+2= ", "completion": "4"}, model=model).item(0)
    assert row is not None
    assert row.tokens[-2:] == [200, END]
    assert row.learnt == [False] * 4 + [True, True]


def test_a_completions_indentation_is_learnt_whatever_places_the_tokenizer_gives(
    tmp_path: Path,
) -> None:
    prompt, completion = "if x: ", "  \n  a \n"
    rows = opened(tmp_path, {"prompt": prompt, "completion": completion}, model=trimming_model())
    row = rows.item(0)
    assert row is not None
    assert row.learnt == [False] * len(prompt) + [True] * (len(completion) + 1)


def test_a_text_that_ends_with_any_end_token_is_learnt_as_it_is(tmp_path: Path) -> None:
    library = tiny_tokenizer()
    tokenizer = ModelTokenizer(Path("/model"), library, frozenset({START, END}))
    model = ModelInput(len(library), 200, lambda: tokenizer)
    row = {"prompt": "2+2=", "completion": "4<|im_start|>"}
    assert learnt(opened(tmp_path, row, model=model).item(0)) == "4<|im_start|>"


def test_a_tokenizer_that_writes_the_end_by_itself_teaches_it_once(tmp_path: Path) -> None:
    row = {"prompt": "2+2=", "completion": "4"}
    found = opened(tmp_path, row, model=appending_model()).item(0)
    assert learnt(found) == "4<|im_end|>"
    assert found is not None
    assert found.tokens.count(END) == 1


def test_of_tokens_the_completion_is_learnt_as_it_is(tmp_path: Path) -> None:
    row = {"tokens": [1, 2, 3], "completion": [4, 5]}
    assert opened(tmp_path, row, model=no_tokenizer()).item(0) == LabelledSequence(
        [1, 2, 3, 4, 5], [False, False, False, True, True]
    )


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (TooLong.TRUNCATE_RIGHT, LabelledSequence([1, 2, 3], [False, False, True], True)),
        (TooLong.TRUNCATE_LEFT, LabelledSequence([2, 3, 4], [False, True, True], True)),
        (TooLong.DROP, None),
    ],
)
def test_a_row_that_is_too_long_goes_by_the_policy(
    tmp_path: Path, policy: TooLong, kept: LabelledSequence | None
) -> None:
    row = {"tokens": [1, 2], "completion": [3, 4]}
    rows = opened(tmp_path, row, model=no_tokenizer(), max_tokens=3, too_long=policy)
    assert rows.item(0) == kept


def test_a_row_of_which_nothing_to_learn_is_left_is_left_out(tmp_path: Path) -> None:
    rows = opened(
        tmp_path,
        {"tokens": [1, 2, 3], "completion": [4]},
        model=no_tokenizer(),
        max_tokens=3,
        too_long=TooLong.TRUNCATE_RIGHT,
    )
    assert rows.item(0) is None


def test_a_row_may_fill_the_whole_context(tmp_path: Path) -> None:
    row = {"tokens": [1] * 6, "completion": [2] * 7}
    assert opened(tmp_path, row, model=no_tokenizer(context=13)).item(0) is not None
    with pytest.raises(SpecError, match=r"rows.jsonl:1: 13 tokens are more than 12"):
        opened(tmp_path, row, model=no_tokenizer(context=12))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "hi"}], "rows.jsonl:1: a prompt that is text needs a column 'completion'"),
        (
            [{"prompt": "hi", "completion": [1]}],
            "rows.jsonl:1: prompt holds text, completion tokens; both must be of one kind",
        ),
        (
            [{"prompt": "a", "completion": "b"}, {"prompt": "c"}],
            "rows.jsonl:2: there is no column 'completion', which other rows have",
        ),
        ([{"messages": [USER]}], "rows.jsonl:1: there is no turn of the assistant to learn"),
    ],
)
def test_the_line_that_is_wrong_is_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^spec.data.prompts: .*{message}"):
        opened(tmp_path, *rows)


def test_a_column_that_nothing_reads_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"prompt": "2+2=", "completion": "4", "tools": "[]", "id": 7}
    opened(tmp_path, row)
    said = f"spec.data.prompts: nothing reads the columns id, tools of {tmp_path}/rows.jsonl"
    assert caplog.messages == [said], "tools are for chats"


def test_a_completion_that_only_a_later_row_has_is_missed(tmp_path: Path) -> None:
    rows = [{"messages": [USER, ASSISTANT]}, {"messages": [USER], "completion": [ASSISTANT]}]
    with pytest.raises(SpecError, match=r"rows.jsonl:1: there is no column 'completion', which "):
        opened(tmp_path, *rows)


@pytest.mark.parametrize("template", [TOOLS + CHAT_TEMPLATE, TOOLS + MARKED])
def test_the_tools_of_a_chat_are_read_and_not_learnt(tmp_path: Path, template: str) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    model = character_model(template, context=1000)
    row = opened(tmp_path, {"messages": [USER, ASSISTANT], "tools": [tool]}, model=model).item(0)
    assert row is not None
    text = model.tokenizer.decode(row.tokens, special=True)
    assert text.startswith('[{"type": "function", "function": {"name": "f"}}]')
    assert learnt(row) == "yes<|im_end|>"


CALL = {"function": {"name": "look", "arguments": "{}"}}


def test_calls_that_the_template_does_not_write_are_refused(tmp_path: Path) -> None:
    """The turn that makes them would be learnt as an empty one."""
    turn = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    rows = [{"messages": [USER, ASSISTANT]}, {"messages": [USER, turn]}]
    with pytest.raises(SpecError, match=r":2: messages: .* template does not write 'tool_calls'"):
        opened(tmp_path, *rows)
    written = "{{ m | tojson }}{% generation %}<|im_end|>{% endgeneration %}"
    writes = f"{{%- for m in messages -%}}{written}{{%- endfor -%}}"
    opened(tmp_path, *rows, model=character_model(writes))


def test_what_a_message_says_beside_its_content_is_named_once_if_nothing_reads_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turn = ASSISTANT | {"reasoning_content": "think", "name": "me", "thinking": None}
    opened(tmp_path, {"messages": [USER, turn]}, {"messages": [USER, turn]})
    said = [record.getMessage() for record in caplog.records]
    (line,) = (text for text in said if "does not write" in text)
    assert line.endswith(
        "rows.jsonl:1: messages: the model's chat template does not write 'reasoning_content' of a "
        "message: nothing reads it"
    )
    caplog.clear()
    writes = "{{ messages[0].reasoning_content }}" + CHAT_TEMPLATE
    opened(
        tmp_path,
        {"messages": [USER | {"reasoning_content": "x"}, turn]},
        model=character_model(writes),
    )
    assert "does not write" not in caplog.text
