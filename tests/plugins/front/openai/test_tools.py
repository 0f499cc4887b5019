"""Tools in chats: what the model reads, its calls whole and streamed, and what is no call."""

import json
from typing import Any

import pytest

from rollcall_plugins.front.openai import tool_calls
from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.chat_messages import read_messages
from rollcall_plugins.front.openai.openai_requests import read_chat
from rollcall_plugins.front.openai.tool_calls import ToolCallText, ToolParser, open_tool_parser
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.worker.errors import SpecError
from tests.plugins.front.openai.front_client import FROM_FRONT
from tests.plugins.front.openai.scripted_model import (
    CALL,
    TEMPLATE,
    WEATHER,
    messages,
    scripted,
    tool_reader,
    tool_tokenizer,
)
from tests.plugins.front.openai.test_server import Sender, reward

ASK = messages(("user", "How is it in Bonn?"))
WITH_TOOLS = {"messages": ASK, "tools": [WEATHER]}
CHAT = "/v1/chat/completions"
PROMPT = "<|im_start|>assistant\n"
LLAMA = 'Respond in the format {"name": function name, "parameters": dictionary} {{ tools }}'


def test_transformers_that_find_no_calls_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "FINDS_CALLS", False)
    assert open_tool_parser("auto", tool_tokenizer(CODER)) is None
    with pytest.raises(SpecError, match=r"toolParser: transformers .* finds no calls of tools"):
        open_tool_parser("hermes", tool_tokenizer(CODER))


async def test_a_call_is_answered_as_openai_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(monkeypatch, f"Let me see.\n{CALL}") as (client, rollout):
        status, body = await client.post(CHAT, WITH_TOOLS)
        (asked,) = rollout.engine.requests
    assert status == 200, body
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["role"], message["content"]) == ("assistant", "Let me see.")
    (call,) = message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Bonn"}
    assert call["id"].startswith("call_")
    read = tool_tokenizer().decode(asked.prompt, special=True)
    assert '"description": "of a city"' in read, "the template writes the tools"


async def test_a_stream_gives_the_text_as_it_comes_and_the_calls_when_they_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scripted(monkeypatch, f"Well <b> {CALL}\n{CALL}") as (client, _):
        events = await client.events(CHAT, WITH_TOOLS)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert [delta["content"] for delta in deltas if delta["content"]] == [*"Well", " <b", ">"]
    assert [d for d in deltas if "tool_calls" in d] == deltas[-1:]
    first, second = deltas[-1]["tool_calls"]
    assert (first["index"], second["index"]) == (0, 1)
    assert first["id"] != second["id"]
    assert first["function"] == {"name": "weather", "arguments": '{"city": "Bonn"}'}
    assert [e["choices"][0]["finish_reason"] for e in events[-2:]] == [None, "tool_calls"]


@pytest.mark.parametrize(
    "said",
    [
        "It rains.",
        '<tool_call>\n{"name": "weather", "arguments": {"city": </tool_call>',
        '<tool_call>{"name": "delete", "arguments": {}}</tool_call> and more',
        '<tool_call>{"name": "weather", "arguments": "Bonn"}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call>",
        "<tool_call>" + "[" * 3000,
        "<tool_ca",
        f"<think>I could write {CALL} now",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_no_call_of_a_tool_stays_text(
    monkeypatch: pytest.MonkeyPatch, said: str, stream: bool
) -> None:
    async with scripted(monkeypatch, said) as (client, _):
        if stream:
            events = await client.events(CHAT, WITH_TOOLS)
            parts = [event["choices"][0] for event in events]
            found = "".join(part["delta"]["content"] or "" for part in parts)
            finish, calls = (
                parts[-1]["finish_reason"],
                [p["delta"].get("tool_calls") for p in parts],
            )
        else:
            _, body = await client.post(CHAT, WITH_TOOLS)
            (choice,) = body["choices"]
            found, finish = choice["message"]["content"], choice["finish_reason"]
            calls = [choice["message"].get("tool_calls")]
    assert (found, finish, set(map(str, calls))) == (said, "stop", {"None"})


async def test_without_the_choice_to_call_calls_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(monkeypatch, CALL) as (client, rollout):
        _, body = await client.post(CHAT, {**WITH_TOOLS, "tool_choice": "none"})
        (asked,) = rollout.engine.requests
    assert body["choices"][0]["message"]["content"] == CALL
    assert "weather" in tool_tokenizer().decode(asked.prompt), "the prompt is as with the choice"


async def test_arguments_come_to_the_template_as_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"id": "c-1", "type": "function"}
    call["function"] = {"name": "weather", "arguments": '{"city":"Bonn"}'}  # type: ignore[assignment]
    turn: list[dict[str, Any]] = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c-1", "content": "rain"},
    ]
    async with scripted(monkeypatch, "It rains.") as (client, rollout):
        status, body = await client.post(CHAT, {"messages": turn, "tools": [WEATHER]})
        (asked,) = rollout.engine.requests
    assert status == 200, body
    read = tool_tokenizer().decode(asked.prompt, special=True)
    assert read.endswith(
        f"assistant\n\n{CALL}<|im_end|>\n<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n"
    )


def test_names_and_thoughts_come_to_the_template() -> None:
    template = (
        "{% for m in messages %}{{ m.role }} {{ m.name }} {{ m.reasoning_content }}: "
        "{{ m.content }};{% endfor %}"
    )
    turn: list[dict[str, Any]] = [
        {"role": "user", "name": "ann", "content": "hi"},
        {"role": "assistant", "name": None, "reasoning_content": "hm", "content": "ho"},
    ]
    text = tool_reader(tool_tokenizer(template)).chat_text(read_messages(turn), ())
    assert text == "user ann : hi;assistant  hm: ho;"
    with pytest.raises(BadRequestError, match=r"messages\[0\].reasoning_content must be text"):
        read_messages([{**turn[1], "reasoning_content": ["hm"]}])


# --- trajectories --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        CALL,
        f"Let me see.\n\n{CALL}\n",
        '<tool_call>{"arguments":{"city":"Bonn"},  "name":"weather"}</tool_call>',
        f"<think>hm</think>{CALL}{CALL}",
    ],
)
async def test_a_call_stays_as_it_was_sampled(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """Also where the template writes it in another way."""
    sender = Sender()
    async with scripted(
        monkeypatch,
        said,
        "It rains.",
        job=FROM_FRONT,
        sender=sender,  # type: ignore[arg-type]
    ) as (client, rollout):
        client.session.headers["X-Rollcall-Trajectory"] = "t-1"
        _, body = await client.post(CHAT, WITH_TOOLS)
        answer = body["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
            for call in answer["tool_calls"]
        ]
        _, body = await client.post(CHAT, {**WITH_TOOLS, "messages": [*ASK, answer, *results]})
        assert body["choices"][0]["message"]["content"] == "It rains."
        status, verdict = await reward(client, reward=1.0)
        first, second = (request.prompt for request in rollout.engine.requests)
    assert (status, verdict) == (200, {"verdict": "counted"})
    own = tool_tokenizer()
    assert second[: len(first)] == first
    read = own.decode(second[len(first) :], special=True)
    tail = "<|im_start|>tool\nrain<|im_end|>\n" * len(results)
    assert read == f"{said}<|im_end|>\n{tail}<|im_start|>assistant\n"
    (sent,) = sender.sent
    (part,) = sent.parts
    assert part.prompt == first
    assert part.sample.versions.count(0) == len(said) + len("It rains.") + 2


@pytest.mark.parametrize("changed", ["content", "arguments", "tools"])
async def test_a_turn_behind_one_that_the_agent_changed_is_a_sample_of_its_own(
    monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    sender = Sender()
    async with scripted(
        monkeypatch,
        CALL,
        "It rains.",
        job=FROM_FRONT,
        sender=sender,  # type: ignore[arg-type]
    ) as (client, rollout):
        client.session.headers["X-Rollcall-Trajectory"] = "t-1"
        _, body = await client.post(CHAT, WITH_TOOLS)
        answer = body["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": "x", "content": "rain"}
        more: dict[str, Any] = {**WITH_TOOLS, "messages": [*ASK, answer, result]}
        if changed == "content":
            answer["content"] = "I ask."
        elif changed == "arguments":
            answer["tool_calls"][0]["function"]["arguments"] = '{"city": "Rome"}'
        else:
            more["tools"] = [WEATHER, WEATHER]
        assert (await client.post(CHAT, more))[0] == 200
        assert (await reward(client, reward=1.0))[0] == 200
        prompts = [request.prompt for request in rollout.engine.requests]
    (sent,) = sender.sent
    assert [part.prompt for part in sent.parts] == prompts
    assert [len(part.sample.tokens) for part in sent.parts] == [len(CALL) + 1, len("It rains.") + 1]


WITHOUT_THOUGHTS = TEMPLATE.replace(
    "{{ message.role + '\\n' + message.content }}",
    "{{ message.role + '\\n' + (message.content if loop.last else "
    "message.content.split('</think>')[-1]) }}",
)


async def test_turns_whose_template_drops_thoughts_are_a_sample_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Qwen3's does, behind another message of the user."""
    said = [f"<think>hm {at}</think>so {at}" for at in range(3)]
    sender, reader = Sender(), tool_reader(tool_tokenizer(WITHOUT_THOUGHTS))
    async with scripted(
        monkeypatch,
        *said,
        job=FROM_FRONT,
        reader=reader,
        sender=sender,  # type: ignore[arg-type]
    ) as (client, rollout):
        client.session.headers["X-Rollcall-Trajectory"] = "t-1"
        messages: list[dict[str, Any]] = [*ASK]
        for _ in said:
            _, body = await client.post(CHAT, {"messages": messages})
            messages += [body["choices"][0]["message"], {"role": "user", "content": "on"}]
        assert (await reward(client, reward=0.5))[0] == 200
        prompts = [request.prompt for request in rollout.engine.requests]
    own = tool_tokenizer()
    assert "hm 0" not in own.decode(prompts[1], special=True)
    (sent,) = sender.sent
    assert [part.prompt for part in sent.parts] == prompts
    sampled = [(*own.encode(text), 2) for text in said]
    assert [part.sample.tokens for part in sent.parts] == sampled
    assert [set(part.sample.logprobs) for part in sent.parts] == [{-0.5}] * 3
    assert [part.sample.reward for part in sent.parts] == [0.5] * 3


# --- how a model writes calls --------------------------------------------------------------------


def found(parser: ToolParser, said: str, before: str = PROMPT) -> tuple[str, list[tuple[str, str]]]:
    text = ToolCallText(parser, before, [WEATHER])
    known = tool_tokenizer()
    given = "".join(text.add(known.decode([one], special=True)) for one in known.encode(said))
    rest, calls = text.end()
    return given + rest, [(call.name, call.arguments) for call in calls]


BONN = ("weather", '{"city": "Bonn"}')
LLAMA_CALL = '{"name": "weather", "parameters": {"city": "Bonn"}}'


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        (LLAMA_CALL, "", [BONN]),
        (f"<|python_tag|>{LLAMA_CALL}; {LLAMA_CALL}", "", [BONN, BONN]),
        (f"I write {LLAMA_CALL}", f"I write {LLAMA_CALL}", []),
        ('{"name": "weather"}', '{"name": "weather"}', []),
        ('{"city": "Bonn"}', '{"city": "Bonn"}', []),
    ],
)
def test_an_answer_that_is_json_is_a_call_of_llama_3(
    said: str, text: str, calls: list[tuple[str, str]]
) -> None:
    parser = open_tool_parser("auto", tool_tokenizer(LLAMA))
    assert parser is not None
    assert found(parser, said) == (text, calls)


CODER = '<tool_call>\n<function=name>\n<parameter=a>\n1\n</parameter> {{ tools }} "arguments"'
TYPED: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "near": {"type": ["number", "null"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "all": {"type": "boolean"},
            },
        },
    },
}


def parameter(name: str, value: str) -> str:
    return f"<parameter={name}>\n{value}\n</parameter>\n"


def coder_call(*parameters: str, name: str = "weather") -> str:
    return f"<tool_call>\n<function={name}>\n{''.join(parameters)}</function>\n</tool_call>"


CODER_CALL = coder_call(parameter("city", "Bonn"))


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        (CODER_CALL, "", [BONN]),
        (f"I look.\n\n{CODER_CALL}\n{CODER_CALL}", "I look.", [BONN, BONN]),
        (CODER_CALL.removeprefix("<tool_call>\n"), "", [BONN]),
        (f"<think>{CODER_CALL}</think>\n{CODER_CALL}", f"<think>{CODER_CALL}</think>", [BONN]),
        (coder_call(parameter("city", "a\nb")), "", [("weather", '{"city": "a\\nb"}')]),
        (coder_call(), "", [("weather", "{}")]),
        *(
            (said, said, [])
            for said in (
                coder_call(parameter("city", "Bonn"), name="delete"),
                coder_call("city=Bonn"),
                coder_call('{"city": "Bonn"}'),
                CODER_CALL[: CODER_CALL.index("</function")],
                "<tool_call>\n<function=weather>\n",
                "<tool_call>\n<function=weather>\n<parameter=city>\nBonn",
                CALL,
                "if a <function",
            )
        ),
    ],
)
def test_calls_in_tags_are_those_of_qwen3_coder(
    said: str, text: str, calls: list[tuple[str, str]]
) -> None:
    parser = open_tool_parser("auto", tool_tokenizer(CODER))
    assert parser is not None
    assert found(parser, said) == (text, calls)


def test_parameters_in_tags_have_the_types_of_the_tools_schema() -> None:
    parser = open_tool_parser("qwen3_coder", tool_tokenizer("no sign"))
    assert parser is not None
    given = {"text": "12", "count": "3", "near": "null", "tags": '["a"]', "all": "True", "x": "7"}
    said = coder_call(*(parameter(*one) for one in given.items()), name="find")
    (call,) = parser.calls(said, "", [TYPED])
    assert json.loads(call.arguments) == {
        "text": "12",
        "count": 3,
        "near": None,
        "tags": ["a"],
        "all": True,
        "x": "7",
    }


async def test_a_call_in_tags_stays_as_it_was_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    sender: Any = Sender()
    reader = tool_reader(setting="qwen3_coder")
    said = (f"I look.\n{CODER_CALL}", "It rains.")
    async with scripted(monkeypatch, *said, reader=reader, job=FROM_FRONT, sender=sender) as (
        client,
        _,
    ):
        client.session.headers["X-Rollcall-Trajectory"] = "t-1"
        events = await client.events(CHAT, WITH_TOOLS)
        deltas = [event["choices"][0]["delta"] for event in events]
        (call,) = deltas[-1]["tool_calls"]
        text = "".join(delta["content"] or "" for delta in deltas)
        assert (text, call["function"]["arguments"]) == ("I look.", BONN[1])
        answer = {"role": "assistant", "content": text, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
        await client.post(CHAT, {**WITH_TOOLS, "messages": [*ASK, answer, result]})
        assert (await reward(client, reward=1.0))[0] == 200
    (part,) = sender.sent[0].parts
    assert part.sample.versions.count(0) == sum(map(len, said)) + 2


def test_a_call_behind_a_thought_that_the_prompt_began_is_one() -> None:
    parser = open_tool_parser("hermes", tool_tokenizer("no sign"))
    assert parser is not None
    said = f"as {CALL} says</think>{CALL}"
    begun = f"{PROMPT}<think>\n"
    assert found(parser, said, begun) == (f"as {CALL} says</think>", [BONN])
    code = CALL.replace("Bonn", "</think>")
    assert found(parser, code) == ("", [("weather", '{"city": "</think>"}')])


def test_the_tokenizers_own_response_template_comes_first() -> None:
    known = tool_tokenizer()
    call = {"open": "<|im_start|>", "close": "<s>", "repeats": True, "content": "json"}
    call |= {"transform": {"type": "function", "function": "{content}"}}
    known.library.response_template = {
        "start_anchor": PROMPT,
        "fields": {"tool_calls": call, "content": {"close": "<|im_end|>"}},
    }
    parser = open_tool_parser("auto", known)
    assert parser is not None
    assert parser.kept == {0: "<s>", 1: "<|im_start|>", 2: "<|im_end|>"}
    inner = '{"name": "weather", "arguments": {"city": "Bonn"}}'
    assert found(parser, f"ok<|im_start|>{inner}<s><|im_end|>") == ("ok", [BONN])
    assert found(parser, "ok<|im_end|>") == ("ok", [])


@pytest.mark.parametrize("own", [{}, {"fields": {"content": {}}, "start_anchor": "a"}, 3])
def test_a_response_template_that_knows_no_calls_ends_the_start(own: Any) -> None:
    known = tool_tokenizer()
    known.library.response_template = own
    with pytest.raises(SpecError, match=r"set spec\.front\.toolParser to one of"):
        open_tool_parser("auto", known)
    assert open_tool_parser("hermes", known) is not None


@pytest.mark.parametrize(
    ("template", "more", "problem"),
    [
        ("{{ tools }} {{ messages }}", {}, "to one of hermes, llama3_json, qwen3_coder"),
        ("<tool_call><function=x> 'arguments' {{ tools }}", {}, "does not know how"),
        ("{{ messages }}", {}, "writes no tools"),
        ("{{ messages }}", {"tool_choice": "none"}, "writes no tools"),
    ],
)
def test_tools_that_cannot_be_answered_are_refused(
    template: str, more: dict[str, Any], problem: str
) -> None:
    reader = tool_reader(tool_tokenizer(template))
    asked = read_chat({"model": "m", **WITH_TOOLS, **more}, SamplingConfig())
    with pytest.raises(BadRequestError, match=problem) as caught:
        reader.prompts(asked)
    assert caught.value.field == "tools"


def test_calls_that_the_chat_template_leaves_out_are_refused() -> None:
    turn = "{{ message.role }}: {{ message.content }}"
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather"}}]},
    ]
    for written, refused in ((turn, True), (f"{turn}{{{{ message.tool_calls }}}}", False)):
        template = f"{{% for message in messages %}}{written}{{% endfor %}}"
        reader = tool_reader(tool_tokenizer(template))
        if refused:
            with pytest.raises(BadRequestError, match="writes no calls of tools") as caught:
                reader.chat_text(messages, ())
            assert caught.value.field == "messages"
            assert reader.chat_text(messages[:1], ())
        else:
            assert "weather" in reader.chat_text(messages, ())
