"""Prompts by number: the same number is always the same prompt."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rollcall_protocol.data_config import DataConfig, DataSource, TooLong
from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.data.prompt_source import PromptSource, open_prompts
from rollcall_runtime.data.row_mix import MAX_DROPPED
from rollcall_runtime.data.travelling_columns import MAX_ROW_BYTES
from rollcall_runtime.models import chat_template
from rollcall_runtime.worker.bounded_worker import BoundedWorker
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import CHAT_TEMPLATE
from tests.unit.rollcall_runtime.data.character_tokenizer import (
    END,
    START,
    STRICT,
    appending_model,
    character_model,
    no_tokenizer,
)

USER = {"role": "user", "content": "hi"}


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def opened(*sources: DataSource | str, model: Any = None, **data: Any) -> PromptSource:
    named = tuple(s if isinstance(s, DataSource) else DataSource(s) for s in sources)
    return open_prompts(DataConfig(sources=named, **data), model=model or no_tokenizer())


def tokens(source: PromptSource, *numbers: int) -> list[tuple[int, ...]]:
    prompts = [source.prompt(number) for number in numbers]
    return [prompt.tokens for prompt in prompts if prompt is not None]


def test_the_built_in_prompts_depend_on_seed_and_number_alone() -> None:
    source, again = (opened("builtin:reverse", seed=7) for _ in range(2))
    other = opened("builtin:reverse", seed=8)
    numbers = range(50)
    assert tokens(source, *numbers) == tokens(again, *reversed(numbers))[::-1]
    assert tokens(source, *numbers) != tokens(other, *numbers)
    assert len(set(tokens(source, *numbers))) > 45


def test_a_file_is_read_over_and_over_in_a_new_order_each_time(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", [{"tokens": [i, 9]} for i in range(8)])
    source = opened(path, seed=1)
    first, second = tokens(source, *range(8)), tokens(source, *range(8, 16))
    assert sorted(first) == sorted(second) == [(i, 9) for i in range(8)]
    assert first != second
    assert tokens(source, 3) == tokens(opened(path, seed=1), 3) == [first[3]]
    assert tokens(opened(path, seed=2), *range(8)) != first


def test_several_sources_come_in_the_proportion_of_their_weights(tmp_path: Path) -> None:
    few = written(tmp_path / "few.jsonl", [{"tokens": [1, i]} for i in range(4)])
    many = written(tmp_path / "many.jsonl", [{"tokens": [2, i % 10]} for i in range(90)])
    source = opened(DataSource(few, weight=1), DataSource(many, weight=3))
    found = tokens(source, *range(16))
    assert [first for first, _ in found].count(1) == 4
    assert sorted(pair for pair in found if pair[0] == 1) == [(1, i) for i in range(4)]


def test_tokens_text_and_chats_become_what_the_model_sees(tmp_path: Path) -> None:
    model = character_model()
    text = opened(written(tmp_path / "t.jsonl", [{"prompt": "hi"}]), model=model).prompt(0)
    chat = opened(written(tmp_path / "c.jsonl", [{"messages": [USER]}]), model=model).prompt(0)
    assert text is not None
    assert chat is not None
    decode = model.tokenizer.decode
    assert decode(text.tokens, special=True) == "hi"
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert decode(chat.tokens, special=True) == rendered
    assert chat.tokens[0] == START


@pytest.mark.parametrize("source", ["file", "template", "builtin:first-letter"])
def test_no_prompt_ends_with_an_end_that_the_tokenizer_writes(tmp_path: Path, source: str) -> None:
    name = written(tmp_path / "p.jsonl", [{"prompt": "ab", "word": "c"}])
    rows: dict[str, DataSource | str] = {
        "file": name,
        "template": DataSource(name, template="{word}:"),
    }
    (found,) = tokens(opened(rows.get(source, source), model=appending_model()), 0)
    assert found[0] == 0, "<s> is before it"
    assert found[-1] != END


def test_a_chat_in_the_column_prompt_is_a_chat(tmp_path: Path) -> None:
    path = written(tmp_path / "c.jsonl", [{"prompt": [USER]}])
    prompt = opened(path, model=character_model()).prompt(0)
    assert prompt is not None
    assert prompt.tokens[0] == START


def test_the_other_columns_and_the_text_travel_to_the_reward(tmp_path: Path) -> None:
    row = {"prompt": "2+2", "answer": 4, "tags": ["sum"], "more": {"n": None}}
    path = written(tmp_path / "p.jsonl", [row])
    every = opened(path, model=character_model()).prompt(0)
    some = opened(DataSource(path, columns=("answer",)), model=character_model()).prompt(0)
    numbers = written(tmp_path / "n.jsonl", [{"tokens": [1, 2], "answer": 4}])
    assert every is not None
    assert every.row == row | {"more": {}}, "a null in an object is left out"
    assert some is not None
    assert some.row == {"answer": 4}
    assert opened(numbers).prompt(0) == Prompt((1, 2), {"answer": 4})


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (TooLong.TRUNCATE_LEFT, Prompt((3, 4), truncated=True)),
        (TooLong.TRUNCATE_RIGHT, Prompt((1, 2), truncated=True)),
        (TooLong.DROP, None),
    ],
)
def test_a_prompt_that_is_too_long_goes_by_the_policy(
    tmp_path: Path, policy: TooLong, kept: Prompt | None
) -> None:
    path = written(tmp_path / "p.jsonl", [{"tokens": [1, 2, 3, 4]}, {"tokens": [5, 6]}])
    source = opened(path, max_tokens=2, too_long=policy)
    found = [source.prompt(number) for number in range(2)]
    assert Prompt((5, 6)) in found
    assert kept in found


def test_by_default_a_prompt_that_is_too_long_fails_when_the_data_is_opened(
    tmp_path: Path,
) -> None:
    rows = [{"tokens": [1]}] * 40 + [{"tokens": [1] * 13}]
    path = written(tmp_path / "p.jsonl", rows)
    with pytest.raises(SpecError, match=r"p.jsonl:41: 13 tokens are more than 12 \(.*context"):
        opened(path, model=no_tokenizer(context=13))
    with pytest.raises(SpecError, match=r"13 tokens are more than 5 \(spec.data.maxTokens\)"):
        opened(path, max_tokens=5)
    with pytest.raises(SpecError, match=r"^spec.data.maxTokens: 13 are more than the 12"):
        opened(path, max_tokens=13)


def of_pools(context: int) -> ModelInput:
    """A model of 200 positions whose rollouts take `context` tokens of prompt and response."""
    sizes: Any = SimpleNamespace(vocabulary=13, positions=200)
    return ModelInput.of(sizes, rollout_context=context)


def test_a_prompt_must_leave_room_in_the_context_of_the_rollouts(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", [{"tokens": [1]}, {"tokens": [3] * 64}])
    wanted = r"p.jsonl:2: 64 tokens are more than 63 \(what maxModelLen of spec.rollouts has room"
    with pytest.raises(SpecError, match=wanted):
        opened(path, model=of_pools(64))
    left_out = opened(path, model=of_pools(64), too_long=TooLong.DROP)
    assert tokens(left_out, 0, 1) == [(1,)]
    assert len(tokens(opened(path, model=of_pools(0)), 0, 1)) == 2
    with pytest.raises(SpecError, match=r"^spec.data.maxTokens: 64 are more than the 63 that max"):
        opened(path, model=of_pools(64), max_tokens=64)


@pytest.mark.parametrize(
    ("sampling", "warned"),
    [
        (SamplingConfig(max_tokens=9), True),
        (SamplingConfig(max_tokens=8), False),
        (SamplingConfig(), False),
        (SamplingConfig(max_tokens=8, column="own"), True),
    ],
)
def test_a_prompt_that_leaves_no_room_for_a_whole_response_is_named_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sampling: SamplingConfig, warned: bool
) -> None:
    long = {"tokens": [3] * 12, "own": {"maxTokens": 9}}
    path = written(tmp_path / "p.jsonl", [{"tokens": [1], "own": None}, long])
    data = DataConfig((DataSource(path),))
    open_prompts(data, model=no_tokenizer(context=20), sampling=sampling).close()
    wanted = f"{path}:2: its prompt of 12 tokens leaves 8 of the 20 of the model's context"
    assert [record.getMessage()[: len(wanted)] for record in caplog.records] == [wanted] * warned


def test_data_of_which_hardly_a_row_is_short_enough_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", [{"tokens": [1, 2, 3]}] * 3)
    source = opened(path, max_tokens=2, too_long=TooLong.DROP)
    assert [source.prompt(number) for number in range(MAX_DROPPED)] == [None] * MAX_DROPPED
    with pytest.raises(SpecError, match=r"^spec.data.maxTokens: 1000 rows one after the other"):
        source.prompt(MAX_DROPPED)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("builtin:sort", "unknown 'builtin:sort'; built in: builtin:reverse"),
        ("/nowhere/prompts.jsonl", "cannot read '/nowhere/prompts.jsonl': .*is it mounted"),
    ],
)
def test_a_source_that_does_not_exist_is_refused(prompts: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^spec.data.prompts: {message}"):
        opened(prompts)


def test_of_several_sources_the_wrong_one_is_named(tmp_path: Path) -> None:
    good = written(tmp_path / "p.jsonl", [{"tokens": [1]}])
    with pytest.raises(SpecError, match=r"^spec.data.sources\[1\].name: unknown 'builtin:reverse"):
        opened(good, "builtin:reverse")


WRONG_ROWS: list[tuple[list[Any], str]] = [
    ([{"tokens": [1]}, {"text": "hi"}], "p.jsonl:2: there is no column 'tokens', which other"),
    ([{"question": "hi"}], "p.jsonl:1: wants a column messages, prompt or tokens; there are quest"),
    ([{"prompt": "hi", "tokens": [1]}], "p.jsonl:1: prompt and tokens could all be the prompt"),
    ([{"tokens": []}], "p.jsonl:1: tokens: holds nothing; wants text, a chat such as"),
    ([{"tokens": [1, True]}], r"p.jsonl:1: tokens: holds \[1, True\]; wants"),
    ([{"tokens": [-1]}], r"p.jsonl:1: tokens: holds \[-1\]; wants"),
    ([{"tokens": [1]}, {"tokens": [99]}], "p.jsonl:2: the model knows the tokens 0 to 12, not 99"),
    ([{"prompt": "hi"}, {"prompt": ""}], "p.jsonl:2: prompt: holds nothing"),
    ([{"prompt": "hi"}, {"prompt": [USER]}], "p.jsonl:2: prompt holds chat, and text in the rows"),
    ([{"messages": [{"role": "user"}]}], "p.jsonl:1: messages: holds .*wants text, a chat"),
    ([[1, 2]], "p.jsonl:1: wants an object, not a list"),
]


@pytest.mark.parametrize(("rows", "message"), WRONG_ROWS)
def test_the_line_that_is_wrong_is_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^spec.data.prompts: .*{message}"):
        opened(written(tmp_path / "p.jsonl", rows))


WRONG_FOR_THE_MODEL: list[tuple[Any, str | None, str]] = [
    ({"messages": [USER]}, None, "^spec.model.path: .*no chat template"),
    ({"messages": [USER]}, STRICT, "^spec.data.prompts: .*p.jsonl:1: .*roles must alternate"),
    ({"messages": [USER]}, "{{ 'x' * 10 ** 10 }}", "p.jsonl:1: .* look for loops within loops"),
    (
        {"messages": [USER, {"role": "assistant", "content": "yes"}]},
        "",
        "p.jsonl:1: the chat ends with the assistant's turn",
    ),
    ({"prompt": "hi", "big": "x" * MAX_ROW_BYTES}, "", "p.jsonl:1: the columns have .* may travel"),
]


@pytest.mark.parametrize(("row", "template", "message"), WRONG_FOR_THE_MODEL)
def test_what_the_model_cannot_take_is_refused(
    tmp_path: Path, row: Any, template: str | None, message: str
) -> None:
    model = character_model() if template == "" else character_model(template)
    with pytest.raises(SpecError, match=message):
        opened(written(tmp_path / "p.jsonl", [row]), model=model)


def test_an_image_without_templates_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "_process", lambda: BoundedWorker("jinjaa2", memory=1 << 30))
    with pytest.raises(SpecError, match=r"^spec.data.prompts: chat templates need .*'jinjaa2'"):
        opened(written(tmp_path / "p.jsonl", [{"messages": [USER]}]), model=character_model())


def test_a_column_that_is_named_is_used(tmp_path: Path) -> None:
    row = {"prompt": "a text for the reward", "tokens": [1, 2]}
    path = written(tmp_path / "p.jsonl", [row])
    prompt = opened(DataSource(path, column="tokens")).prompt(0)
    assert prompt == Prompt((1, 2), {"prompt": "a text for the reward"})
    for source, message in (
        (DataSource(path, column="input"), "there is no column 'input'; there are prompt, tokens"),
        (DataSource(path, column="tokens", columns=("key",)), "there is no column 'key'"),
    ):
        with pytest.raises(SpecError, match=f"p.jsonl:1: {message}"):
            opened(source)


def with_own_settings(tmp_path: Path, *own: Any) -> PromptSource:
    path = tmp_path / "own.jsonl"
    rows = [{"tokens": [1, 2], "label": 3, "own": settings} for settings in own]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = DataConfig(sources=(DataSource(str(path), columns=("label",)),))
    return open_prompts(data, model=no_tokenizer(), sampling=SamplingConfig(column="own"))


def test_the_settings_of_sampling_of_a_row_travel_with_it(tmp_path: Path) -> None:
    prompt = with_own_settings(tmp_path, {"maxTokens": 4}).prompt(0)
    assert prompt is not None
    assert prompt.row == {"label": 3, "own": {"maxTokens": 4}}


def test_bad_settings_of_sampling_name_row_and_column_before_the_first_step(tmp_path: Path) -> None:
    # The first of rows of one length is none of the longest, which are read whole.
    good = [{"maxTokens": 4}] * 20
    message = r"own.jsonl:1: own \(spec.algorithm.sampling.column\): maxTokens must be from 1"
    with pytest.raises(SpecError, match=message):
        with_own_settings(tmp_path, {"maxTokens": 0}, *good)


def test_first_letters_are_text_for_the_tokenizer_with_the_answer_in_the_row() -> None:
    model = character_model()
    source = opened("builtin:first-letter", model=model, seed=5)
    prompt = source.prompt(7)
    assert prompt is not None
    assert prompt.row is not None
    assert list(prompt.tokens) == model.text_tokens(prompt.row["prompt"])
    assert prompt.row["answer"] == prompt.row["word"][0]
    assert source.prompt(7) == prompt
    assert source.place(7) == "builtin:first-letter, number 7"


def test_first_letters_need_a_tokenizer_and_room() -> None:
    with pytest.raises(SpecError, match="the model has no tokenizer"):
        opened("builtin:first-letter")
    with pytest.raises(SpecError, match=r"spec\.data\.prompts: builtin:first-letter, number 0"):
        opened("builtin:first-letter", model=character_model(context=5))


def test_a_template_makes_text_prompts_of_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "sums.jsonl", [{"question": "1 + 1", "answer": 2}])
    source = DataSource(path, template="2 + 3 = 5\n{question} =", columns=("answer",))
    model = character_model()
    prompt = opened(source, model=model).prompt(0)
    assert prompt is not None
    assert list(prompt.tokens) == model.text_tokens("2 + 3 = 5\n1 + 1 =")
    assert prompt.row == {"answer": 2}


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, [0.5, NAN], [{"deep": [INFINITY]}]])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_a_number_that_json_does_not_have_is_refused_before_the_first_step(
    tmp_path: Path, suffix: str, value: Any
) -> None:
    # The first row is none of the longest, which are read whole.
    score = [{"deep": [0.5]}] if isinstance(value, list) and isinstance(value[0], dict) else [0.5]
    good = {"prompt": "a longer one", "score": score if isinstance(value, list) else 0.5}
    rows = [{"prompt": "one", "score": value}, *([good] * 20)]
    path = tmp_path / f"p.{suffix}"
    if suffix == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = {"parquet": ", row 1"}.get(suffix, ":1")
    message = f"p.{suffix}{place}: score holds NaN or Infinity, which JSON does not have; write nu"
    with pytest.raises(SpecError, match=f"^spec.data.prompts: .*{message}"):
        opened(str(path), model=character_model())
    opened(DataSource(str(path), columns=("prompt",)), model=character_model())


def test_a_number_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one", "score": 1e999}')
    with pytest.raises(SpecError, match=r"p.jsonl:1: score holds NaN or Infinity"):
        opened(str(tmp_path / "p.jsonl"), model=character_model())


def test_a_template_takes_no_nan(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", [{"n": NAN}])
    with pytest.raises(SpecError, match=r"p.jsonl:1: n holds nan; a template takes texts"):
        opened(DataSource(path, template="{n} ="), model=character_model())


def test_a_row_that_is_left_out_for_its_length_may_be_too_large_to_travel(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * MAX_ROW_BYTES}, {"prompt": "hi"}]
    path = written(tmp_path / "p.jsonl", rows)
    model = character_model(context=10)
    source = opened(path, model=model, too_long=TooLong.DROP)
    assert tokens(source, 0, 1) == [tuple(model.text_tokens("hi"))]


TOOLS_FIRST = "{{ tools | tojson }}" + CHAT_TEMPLATE
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"a": NAN}}}


def test_the_tools_of_a_row_are_in_its_prompt(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    path = written(
        tmp_path / "c.jsonl",
        [
            {"messages": [USER], "tools": [tool]},
            {"messages": [USER], "tools": json.dumps([tool])},
            {"messages": [USER], "tools": ""},
        ],
    )
    model = character_model(TOOLS_FIRST)
    source = opened(path, model=model)
    texts = sorted(model.tokenizer.decode(each, special=True) for each in tokens(source, 0, 1, 2))
    assert texts[0] == texts[1]
    assert texts[0].startswith('[{"type": "function", "function": {"name": "f"}}]<|im_start|>user')
    assert texts[2].startswith("null<|im_start|>user")
    prompt = source.prompt(0)
    assert prompt is not None
    assert prompt.row is not None
    assert "tools" in prompt.row, "the reward function gets them, too"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tools": "f"}, "tools is not JSON: "),
        ({"tools": {"name": "f"}}, "tools holds {'name': 'f'}; wants a list of functions by JSON"),
        (
            {"tools": ["f"]},
            r"tools holds \['f'\]; wants a list of functions by JSON schema, or null",
        ),
        ({"tools": [TOOL]}, "tools holds NaN or Infinity, which JSON does not have"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [TOOL]}, USER]},
            "messages holds NaN or Infinity, which JSON does not have",
        ),
    ],
)
def test_tools_that_cannot_be_written_are_named(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    path = written(tmp_path / "c.jsonl", [{"messages": [USER], **row}])
    with pytest.raises(SpecError, match=f"^spec.data.prompts: .*c.jsonl:1: {message}"):
        opened(path, model=character_model(TOOLS_FIRST))


def test_columns_that_nothing_reads_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"question": "1", "answer": "1", "from": "me"}, {"question": "2", "level": 3}]
    path = written(tmp_path / "p.jsonl", rows)
    source = DataSource(path, template="{question} =", columns=("answer",))
    for _ in range(2):
        opened(source, model=character_model())
    said = f"spec.data.prompts: nothing reads the columns from, level of {path}"
    assert caplog.messages == [said]
    caplog.clear()
    opened(DataSource(path, template="{question}"), model=character_model())
    assert caplog.messages == [], "the reward function gets all columns"


def test_tools_that_the_template_does_not_write_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "c.jsonl", [{"messages": [USER], "tools": [{"name": "f"}]}])
    opened(path, model=character_model())
    said = f"spec.data.prompts: the model's chat template does not write the tools of {path}"
    assert caplog.messages == [said]


@pytest.mark.parametrize("role", ["human", "gpt", "User"])
def test_a_role_that_no_template_knows_is_refused(tmp_path: Path, role: str) -> None:
    """A template that writes any role as it is would make a turn that no model was trained on."""
    path = written(tmp_path / "p.jsonl", [{"messages": [{"role": role, "content": "a"}]}])
    with pytest.raises(SpecError, match=rf"p.jsonl:1: messages: .* knows no role '{role}'; write"):
        opened(path, model=character_model())
    own = "{% if messages[0]['role'] == 'ROLE' %}Q: {{ messages[0]['content'] }}{% endif %}"
    prompt = opened(path, model=character_model(own.replace("ROLE", role))).prompt(0)
    assert prompt is not None


@pytest.mark.parametrize(
    "text",
    ['[{"role": "user", "content": "hi"}]', "[{'role': 'user', 'content': 'hi'}]"],
    ids=["json", "python"],
)
@pytest.mark.parametrize("name", ["prompt", "messages"])
def test_a_chat_as_text_is_refused(tmp_path: Path, text: str, name: str) -> None:
    """The model would read brackets and names of keys."""
    path = written(tmp_path / "p.jsonl", [{name: text}])
    with pytest.raises(SpecError, match=rf"p.jsonl:1: {name}: holds a chat as text; give a list"):
        opened(path, model=character_model())


def test_content_in_parts_is_refused(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "hi"}]
    path = written(tmp_path / "p.jsonl", [{"messages": [{"role": "user", "content": parts}]}])
    with pytest.raises(SpecError, match=r"p.jsonl:1: messages: holds a message whose content is a"):
        opened(path, model=character_model())


def test_preferences_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "hi", "chosen": "good", "rejected": "bad"}]
    path = written(tmp_path / "p.jsonl", rows)
    opened(path, model=character_model())
    problem = f"{path} has preferences (the columns chosen and rejected)"
    said = f"spec.data.prompts: {problem}; its prompts alone are read, and the reward decides"
    assert caplog.messages == [said]


@pytest.mark.parametrize("template", ["Hello!", "{{ messages[0].role }}{{ messages | length }}"])
def test_a_template_that_leaves_out_what_the_user_says_is_refused(
    tmp_path: Path, template: str
) -> None:
    path = written(tmp_path / "p.jsonl", [{"messages": [USER]}])
    with pytest.raises(SpecError, match=r"^spec.model.path: .* writes the same .* in .*p.jsonl:1;"):
        opened(path, model=character_model(template))
    alone = [{"messages": [{"role": "system", "content": "a"}]}]
    opened(written(tmp_path / "s.jsonl", alone), model=character_model(template))


def test_a_template_that_fails_in_any_way_names_the_row(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    with pytest.raises(
        SpecError, match=r"p.jsonl:1: the chat template refuses these messages: int"
    ):
        opened(path, model=character_model("{{ 1 // 0 }}"))


def test_a_column_of_bytes_is_named(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a"], "picture": [b"\x89PNG"]})
    parquet.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(
        SpecError, match="row 1: picture: a column holds bytes, which JSON does not"
    ):
        opened(str(tmp_path / "p.parquet"))
