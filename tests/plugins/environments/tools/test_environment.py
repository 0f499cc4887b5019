"""Tools: a turn's calls are made in order, and whatever goes wrong is read by the model."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from rollcall_plugins.environments.tools.environment import (
    MAX_CALLS,
    MAX_RESULT,
    ToolEnvironment,
    load_tools,
)
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_tiny_model


def add(a: int, b: int) -> int:
    return a + b


async def upper(text: str) -> str:
    return text.upper()


def fails() -> None:
    raise OSError("no disk")


def opaque() -> object:
    return object()


ENVIRONMENT = ToolEnvironment({f.__name__: f for f in (add, upper, fails, opaque)})


def results(response: str) -> list[str]:
    messages, reward, done = ENVIRONMENT.step(response)
    assert messages is not None
    assert (reward, done) == (0.0, False)
    assert {message["role"] for message in messages} == {"tool"}
    return [message["content"] for message in messages]


def call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def test_calls_are_made_in_their_order() -> None:
    first = call('{"name": "add", "arguments": {"a": 2, "b": 3}}')
    second = call('{"name": "upper", "arguments": {"text": "six"}}')
    assert results(f"let me see {first} and {second}") == ["5", "SIX"]


def test_a_result_is_text_that_a_model_can_read() -> None:
    half = call('{"name": "upper", "arguments": {"text": "a \\ud83d b"}}')
    assert results(half) == ["A ? B"]


def test_a_turn_without_a_call_ends_the_response() -> None:
    assert ENVIRONMENT.step("the sum is 5") == (None, 0.0, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "add"', "JSONDecodeError"),
        ("[1]", 'a call is {"name": ..., "arguments": {...}}'),
        ('{"name": "add", "arguments": [1, 2]}', "a call is"),
        ('{"name": "divide", "arguments": {}}', "no tool 'divide'; there are add, upper, fails"),
        ('{"name": "add", "arguments": {"a": 2}}', "missing 1 required positional argument"),
        ('{"name": "fails"}', "OSError: no disk"),
        ('{"name": "opaque"}', "not JSON serializable"),
    ],
)
def test_the_model_reads_what_is_wrong_with_its_call(text: str, problem: str) -> None:
    (result,) = results(call(text))
    assert result.startswith("error: ")
    assert problem in result


def test_a_long_result_is_cut_off_and_not_all_calls_are_made() -> None:
    long = call('{"name": "upper", "arguments": {"text": "%s"}}' % ("x" * 2 * MAX_RESULT))
    assert [len(result) for result in results(long)] == [MAX_RESULT]
    many = call('{"name": "add", "arguments": {"a": 1, "b": 1}}') * (MAX_CALLS + 3)
    assert results(many) == ["2"] * MAX_CALLS


async def test_tools_are_found_by_name_and_get_the_text_of_the_turn(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    environment = load_tools([f"{__name__}:add"], directory=directory).new()
    assert (await environment.reset((1,), {}, 0)).observation is None
    assert (await environment.step((1, 1))).done, "no call"


def test_tools_that_cannot_be_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    for tools, field in (
        (["json:lods"], "spec.environment.tools[0]"),
        (["json:loads", "marshal:loads"], "spec.environment.tools[1]"),
    ):
        with pytest.raises(SpecError) as refused:
            load_tools(tools, directory=directory)
        assert refused.value.field == field
    with pytest.raises(SpecError, match="is built in and has no text"):
        load_tools(["json:loads"], directory=None)


async def test_a_call_is_found_where_its_tag_is_a_special_token(tmp_path: Path) -> None:
    words = ("<tool_call>", "</tool_call>", '{"name":"whoami"}')
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}))
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[:2]])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    made = load_tools(["getpass:getuser"], directory=tmp_path).new()
    found = await made.step((0, 2, 1))
    assert not found.done
    assert "there is no tool 'whoami'" in str(found.observation)
