"""The front's endpoints: answers in OpenAI's form, keys, bounds, and rollouts that are lost."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from yarl import URL

from rollcall_plugins.front.openai import admission, server
from rollcall_plugins.front.openai.api_keys import ApiKeys
from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.openai_requests import read_completion
from rollcall_plugins.front.openai.prompts import PromptReader
from rollcall_plugins.front.openai.recording import TRAJECTORY_HEADER
from rollcall_plugins.front.openai.text_stream import TextStream
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.generation import GenerationRequest, NewTokens
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED
from rollcall_protocol.wire.serving_rollouts import ServingRollouts
from rollcall_protocol.wire.trajectories import FinishedTrajectory, TrajectoryVerdict
from rollcall_runtime.generation import continued_generation, rollout_client
from rollcall_runtime.rollout.inference_engine import TokenLimits
from rollcall_runtime.worker.errors import SpecError
from tests.plugins.front.openai import front_client
from tests.plugins.front.openai.front_client import (
    FROM_FRONT,
    JOB,
    SOURCE,
    FrontClient,
    front,
    numbers,
    tokenizer,
)
from tests.unit.rollcall_runtime.data.character_tokenizer import appending_model
from tests.unit.rollcall_runtime.generation.lying_rollouts import liar
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    CountingEngine,
    CountingRollout,
    counting_rollout,
    expected,
    tokens_each,
)

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
KEY, OTHER_KEY = "a" * 20, "b" * 20


def answer_to(prompt: str, count: int) -> str:
    known = tokenizer()
    return known.decode(expected(tuple(known.encode(prompt)), count))


async def test_a_chat_goes_through_the_template() -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        body = await client.chat(max_completion_tokens=6)
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    content = answer_to(PROMPT, 6)
    assert choice["message"] == {"role": "assistant", "content": content, "refusal": None}
    assert choice["finish_reason"] == "length"
    length = len(tokenizer().encode(PROMPT))
    assert body["usage"] == {
        "prompt_tokens": length,
        "completion_tokens": 6,
        "total_tokens": length + 6,
    }


def test_a_template_without_bounds_refuses_the_request() -> None:
    known = tokenizer()
    known.library.chat_template = "{{ 'x' * 10 ** 10 }}"
    with pytest.raises(BadRequestError, match=r"refuses these messages: .* GiB of memory"):
        PromptReader(SOURCE, known).chat_text([{"role": "user", "content": "hi"}], ())


def test_a_role_that_the_chat_template_does_not_know_is_refused() -> None:
    reader = PromptReader(SOURCE, tokenizer())
    with pytest.raises(BadRequestError, match="the chat template knows no role 'human'") as caught:
        reader.chat_text([{"role": "human", "content": "hi"}], ())
    assert caught.value.field == "messages"


async def test_a_stream_says_the_same_as_a_whole_answer() -> None:
    messages = [{"role": "user", "content": "hi"}]
    options = {"messages": messages, "max_tokens": 9, "stream_options": {"include_usage": True}}
    async with counting_rollout() as rollout, front(rollout) as client:
        events = await client.events("/v1/chat/completions", options)
    *pieces, last = events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 9
    texts = [piece["choices"][0]["delta"]["content"] for piece in pieces]
    assert "".join(texts) == answer_to(PROMPT, 9)
    roles = [piece["choices"][0]["delta"].get("role") for piece in pieces]
    assert roles == ["assistant", *[None] * 7], "clients join those of all pieces"
    assert len(texts) == 8, "each token with a text came by itself"
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * 7 + ["length"]


async def test_a_request_leaves_its_connection_to_the_rollout_for_the_next_one() -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        for _ in range(3):
            await client.chat(max_tokens=4)
        assert len(rollout.connections) == 1


async def test_tokens_in_and_tokens_out() -> None:
    prompt, wanted = numbers(0)
    async with counting_rollout() as rollout, front(rollout, with_tokenizer=False) as client:
        body = await client.complete(prompt)
        status, refused = await client.post("/v1/completions", {"prompt": "text"})
    assert body["choices"][0]["token_ids"] == list(wanted)
    assert status == 400
    assert "no tokenizer" in refused["error"]["message"]


async def test_log_probabilities_are_of_the_sampled_tokens() -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        chat = await client.chat(max_tokens=3, logprobs=True)
        text = await client.complete("hi", max_tokens=3, logprobs=0)
    content = chat["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in content] == [-0.5] * 3
    assert "".join(one["token"] for one in content) == answer_to(PROMPT, 3)
    own = text["choices"][0]["logprobs"]
    assert own["token_logprobs"] == [-0.5] * 3
    assert own["text_offset"] == [0, 1, 2]


async def test_several_choices_are_sampled_apart() -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        body = await client.chat(n=3, max_tokens=2)
        events = await client.events("/v1/completions", {"prompt": "hi", "n": 3, "max_tokens": 2})
        seeds = {request.seed for request in rollout.engine.requests}
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len(seeds) == 6
    assert body["usage"]["completion_tokens"] == 6
    assert sorted(event["choices"][0]["index"] for event in events) == [0, 0, 1, 1, 2, 2]


async def test_a_stop_string_ends_the_answer_and_the_request() -> None:
    text = answer_to(PROMPT, 24)
    async with counting_rollout(pause=0.002) as rollout, front(rollout) as client:
        body = await client.chat(stop=[text[4:6]])
        await asyncio.wait_for(rollout.endpoint.idle(), 5)
        assert rollout.engine.sampled < 24
    (choice,) = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text[:4], "stop")


async def test_models_lists_the_jobs() -> None:
    async with (
        counting_rollout() as rollout,
        front(rollout) as client,
        client.session.get(f"{client.url}/v1/models") as answer,
    ):
        assert [model["id"] for model in (await answer.json())["data"]] == [JOB.model]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"model": "gpt-4"}, 404, "model"),
        ({"prompt": [500]}, 400, "prompt"),
        ({"max_tokens": 254}, 400, "prompt"),
        ({"prompt": [3] * 256}, 400, "prompt"),
        ({"tools": [{}]}, 400, "tools"),
    ],
)
async def test_refusals_have_openais_form(body: dict[str, Any], status: int, field: str) -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        found, answer = await client.post("/v1/completions", {"prompt": [3, 4, 5], **body})
        assert not rollout.engine.requests
    assert (found, answer["error"]["param"]) == (status, field)
    assert answer["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models/models/own", "/v1/models/models%2Fown"])
async def test_a_model_is_found_by_its_name_which_has_slashes(path: str) -> None:
    job = replace(JOB, model="models/own")
    async with counting_rollout() as rollout, front(rollout, job=job) as client:
        async with client.session.get(URL(client.url + path, encoded=True)) as answer:
            assert (answer.status, (await answer.json())["id"]) == (200, "models/own")
        async with client.session.get(f"{client.url}/v1/models/gpt-4") as answer:
            body = await answer.json()
    assert (answer.status, body["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "asked",
    [
        {"max_tokens": 254},
        {"prompt": [3] * 256},
        {"prompt": [3] * 9031},
    ],
)
async def test_what_the_models_positions_have_no_room_for_has_openais_code(
    asked: dict[str, Any],
) -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        status, answer = await client.post("/v1/completions", {"prompt": [3, 4, 5], **asked})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(("begins", "first"), [(True, 0), (False, 68)])
def test_a_text_has_what_the_tokenizer_writes_before_it_where_no_template_does(
    begins: bool, first: int
) -> None:
    reader = PromptReader(SOURCE, appending_model().tokenizer)
    found = reader.encode("ab", "prompt", begins=begins)
    assert (found[0], found[-1]) == (first, 69)


async def test_a_prompt_of_text_begins_as_a_row_of_text_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_client, "tokenizer", lambda: appending_model().tokenizer)
    async with counting_rollout() as rollout, front(rollout) as client:
        await client.complete("ab", max_tokens=2)
        await client.chat("ab", max_tokens=2)
    text, chat = (request.prompt for request in rollout.engine.requests)
    assert text == (0, 68, 69)
    assert chat[0] != 0, "the template wrote none"


def test_where_a_request_names_no_length_its_answer_gets_what_room_there_is() -> None:
    reader = PromptReader(SOURCE, tokenizer(), rollout_context=20)
    usual, prompt = SamplingConfig(max_tokens=9), [3] * 12
    asked = {"model": JOB.model, "prompt": prompt}
    reader.check(read_completion(asked, usual), tuple(prompt))
    with pytest.raises(BadRequestError, match=r"length is 20 tokens; .* 12, and 9 more"):
        reader.check(read_completion({**asked, "max_tokens": 9}, usual), tuple(prompt))
    with pytest.raises(BadRequestError, match=r"length is 20 tokens; .* 20, and 1 more"):
        reader.check(read_completion(asked, usual), (3,) * 20)


async def test_a_rollout_with_less_room_than_the_model_has_positions_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = TokenLimits(24, 20)
    monkeypatch.setattr(CountingEngine, "limits", room, raising=False)
    async with counting_rollout() as rollout, front(rollout) as client:
        await client.complete([3] * 10, max_tokens=10)
        asked = {"prompt": [3] * 10, "max_tokens": 11}
        status, answer = await client.post("/v1/completions", asked)
        assert len(rollout.engine.requests) == 1
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 20 tokens" in answer["error"]["message"]


# --- keys ----------------------------------------------------------------------------------------


def write_keys(path: Path, *keys: str) -> ApiKeys:
    path.write_text("# of agents\n" + "\n".join(keys) + "\n")
    return ApiKeys(path)


async def test_a_key_that_is_no_text_is_refused(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "api-keys", KEY)
    async with counting_rollout() as rollout, front(rollout, keys=keys) as client:
        port = int(client.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()


async def test_only_who_shows_a_key_gets_in(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "api-keys", KEY, OTHER_KEY)
    async with counting_rollout() as rollout, front(rollout, keys=keys) as client:
        for wrong in ("", "guess", KEY[:-1], "# of agents"):
            client.key = wrong
            status, body = await client.post("/v1/completions", {"prompt": [3]})
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        for key in (KEY, OTHER_KEY):
            client.key = key
            assert (await client.post("/v1/completions", {"prompt": [3]}))[0] == 200


def test_keys_follow_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcall_runtime.worker.identity.reread_files.LOOK_SECONDS", 0.0)
    path = tmp_path / "api-keys"
    keys = write_keys(path, KEY)
    path.write_text(f"{OTHER_KEY}\n")
    os.utime(path, ns=(1, 1))
    assert not keys.admits(KEY)
    assert keys.admits(OTHER_KEY)
    path.write_text("")
    assert keys.admits(OTHER_KEY), "after a bad write the former key is still admitted"


@pytest.mark.parametrize("content", ["", "\n# nothing\n", "short\n"])
def test_a_file_without_a_usable_key_ends_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "api-keys"
    path.write_text(content)
    with pytest.raises(SpecError, match=r"spec\.front\.apiKeysSecret"):
        ApiKeys(path)


# --- bounds --------------------------------------------------------------------------------------


async def test_more_requests_than_may_wait_are_refused() -> None:
    settings = FrontConfig(most_running=1, most_waiting=1)
    async with (
        counting_rollout(pause=0.01) as rollout,
        front(rollout, settings=settings) as client,
    ):
        asked = [client.post("/v1/completions", {"prompt": [3], "max_tokens": 5}) for _ in range(4)]
        found = sorted(status for status, _ in await asyncio.gather(*asked))
    assert found == [200, 200, 429, 429]


async def test_a_request_of_one_choice_is_answered_beside_those_of_128() -> None:
    settings = FrontConfig(most_running=4)
    async with (
        counting_rollout(pause=0.001) as rollout,
        front(rollout, settings=settings) as client,
    ):
        wide = [
            asyncio.create_task(client.post("/v1/completions", {"prompt": [3], "n": 128}))
            for _ in range(3)
        ]
        while not rollout.engine.running:
            await asyncio.sleep(0.001)
        async with asyncio.timeout(5):
            await client.complete([4], max_tokens=5)
        assert rollout.engine.running <= 4
        assert not any(task.done() for task in wide)
        for task in wide:
            task.cancel()


async def test_a_key_that_asks_for_more_answers_than_its_part_waits() -> None:
    async with counting_rollout(pause=60) as rollout, front(rollout) as client:
        body = {"prompt": [[3]] * 32, "n": 128}
        wide = asyncio.create_task(client.post("/v1/completions", body))
        while not rollout.engine.running:
            await asyncio.sleep(0.001)
        whole = {"model": JOB.model, "prompt": [3]}
        async with client.session.post(f"{client.url}/v1/completions", json=whole) as answer:
            assert answer.status == 429
            assert answer.headers["Retry-After"] == "1"
            assert "4096 of 4096 answers unfinished" in await answer.text()
        wide.cancel()


async def test_who_finds_no_place_is_refused_before_its_body_is_read() -> None:
    settings = FrontConfig(most_running=1, most_waiting=0)
    async with (
        counting_rollout(pause=60) as rollout,
        front(rollout, settings=settings) as client,
    ):
        running = asyncio.create_task(client.post("/v1/completions", {"prompt": [3]}))
        while not rollout.engine.running:
            await asyncio.sleep(0.001)
        status = await status_of_half(client, server.COMPLETIONS, 1000)
        running.cancel()
    assert status == 429


async def status_of_half(client: FrontClient, path: str, length: int) -> int:
    """The answer to a request of which half of the body comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
    writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode())
    writer.write(b" " * (length // 2))
    try:
        async with asyncio.timeout(5):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("path", "length"),
    [
        (server.COMPLETIONS, 2 * ((1 << 20) + 256 * 64) + 2),  # of which half comes
        ("/v1/trajectories/t-1/reward", 20_000),
    ],
)
async def test_a_body_that_no_request_needs_is_not_read(path: str, length: int) -> None:
    """The model has 256 positions; a reward is a number and a name."""
    async with counting_rollout() as rollout, front(rollout) as client:
        assert await status_of_half(client, path, length) == 413


async def test_a_body_that_comes_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.05)
    async with counting_rollout() as rollout, front(rollout) as client:
        assert await status_of_half(client, server.COMPLETIONS, 1000) == 400


async def test_who_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_SECONDS", 0.02)
    settings = FrontConfig(most_running=1, most_waiting=5)
    async with (
        counting_rollout(pause=0.02) as rollout,
        front(rollout, settings=settings) as client,
    ):
        asked = [client.post("/v1/completions", {"prompt": [3], "max_tokens": 5}) for _ in range(2)]
        assert sorted(status for status, _ in await asyncio.gather(*asked)) == [200, 429]


async def test_a_request_has_a_deadline() -> None:
    settings = FrontConfig(request_seconds=0.05)
    async with counting_rollout(pause=60) as rollout, front(rollout, settings=settings) as client:
        status, body = await client.post("/v1/completions", {"prompt": [3]})
        await asyncio.wait_for(rollout.endpoint.idle(), 5)
    assert status == 504
    assert "0.05 s" in body["error"]["message"]


async def test_a_stream_that_is_too_late_ends_with_an_error_and_is_not_recorded() -> None:
    settings, sender = FrontConfig(request_seconds=0.3), Sender()
    async with (
        counting_rollout(pause=0.02) as rollout,
        front(rollout, settings=settings, job=FROM_FRONT, sender=cast("Any", sender)) as client,
        asyncio.timeout(10),
    ):
        body = {"prompt": [3], "max_tokens": 200}
        *pieces, last = await client.events("/v1/completions", body)
        assert kept(client) in {None, 0}
    assert pieces
    assert all(piece["choices"][0]["finish_reason"] is None for piece in pieces)
    assert "0.3 s" in last["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_rollout_stops_when_the_agent_leaves(
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    monkeypatch.setattr("rollcall_runtime.rollout.generation_endpoint.HEARTBEAT_SECONDS", 0.01)
    async with counting_rollout(pause=0.01) as rollout, front(rollout) as client:
        body = {"prompt": [3], "max_tokens": 200, "stream": stream}
        running = asyncio.create_task(client.post("/v1/completions", body))
        while not rollout.engine.sampled:
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait_for(rollout.endpoint.idle(), 5)
        assert rollout.engine.sampled < 200


# --- lost rollouts -------------------------------------------------------------------------------


async def stream_tokens(client: FrontClient, at: int, count: int) -> tuple[int, ...]:
    body = {"prompt": numbers(at)[0], "max_tokens": count, "return_token_ids": True}
    events = await client.events("/v1/completions", body)
    assert [event for event in events if "error" in event] == []
    return tuple(token for event in events for token in event["choices"][0]["token_ids"])


async def test_a_killed_rollout_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 streams on two rollouts; one dies in the middle of all of its streams."""
    # Clients, front and rollouts share one event loop here: a busy machine is slow to connect.
    monkeypatch.setattr(rollout_client, "CONNECT_SECONDS", 60.0)
    count = 40
    async with (
        counting_rollout("cpu-0", pause=0.005) as lost,
        counting_rollout("cpu-1", pause=0.005) as other,
        front(lost, other) as client,
    ):
        streams = [asyncio.create_task(stream_tokens(client, at, count)) for at in range(64)]
        while lost.engine.sampled < 32 * 5:
            await asyncio.sleep(0.001)
        await lost.kill()
        found = await asyncio.gather(*streams)
        assert found == [numbers(at, count)[1] for at in range(64)]
        continued = [request for request in other.engine.requests if request.begun.tokens]
        assert len(continued) == 32
        assert all(len(request.begun.tokens) >= 1 for request in continued)
        assert lost.engine.sampled < 32 * count
        value = client.metrics.registry.get_sample_value
        assert value("rollcall_front_moved_requests_total", client.metrics.labels) == 32


async def test_a_response_of_two_rollouts_is_as_old_as_its_oldest_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingEngine, "generate", tokens_each(2, pods=1))
    sender = Sender()
    async with (
        counting_rollout("cpu-0", number=2) as lost,
        counting_rollout("cpu-1", number=5) as other,
        front(lost, other, job=FROM_FRONT, sender=cast("Any", sender)) as client,
    ):
        await say(client, ASK)
        assert (await reward(client, reward=1))[0] == 200
    (sent,) = sender.sent
    assert sent.parts[0].sample.versions == (2, 2, 5, 5, 5, 5)
    assert sent.oldest == Version(Lineage(1, 1), 2)


async def test_rollouts_that_all_fail_end_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continued_generation, "MOST_MOVES", 3)
    monkeypatch.setattr("rollcall_runtime.generation.routing.AVOID_SECONDS", 0.0)
    async with counting_rollout() as rollout, front(rollout) as client:
        rollout.engine.error = RuntimeError("no weights")
        status, body = await client.post("/v1/completions", {"prompt": [3]})
        assert len(rollout.engine.requests) == 3
    assert status == 503
    assert "no weights" in body["error"]["message"]


@pytest.mark.parametrize("status", [400, 413])
async def test_a_request_that_the_rollouts_refuse_is_refused(status: int) -> None:
    async with (
        liar(b'{"error": "it is too long"}', status=status) as refusing,
        front() as client,
        asyncio.timeout(5),
    ):
        client.generation.replace(ServingRollouts((refusing,)))
        found, body = await client.post("/v1/completions", {"prompt": [3]})
    assert found == 400
    assert "it is too long" in body["error"]["message"]


async def test_an_error_of_one_choice_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise OSError("no text")

    monkeypatch.setattr(TextStream, "add", fails)
    settings = FrontConfig(request_seconds=20)
    body = {"model": JOB.model, "prompt": "hi", "n": 2}
    async with (
        counting_rollout() as honest,
        front(honest, settings=settings) as client,
        asyncio.timeout(5),
        client.session.post(f"{client.url}/v1/completions", json=body) as answer,
    ):
        assert answer.status == 500


@pytest.mark.parametrize("reached", [server.CHAT, server.COMPLETIONS])
async def test_what_is_no_json_is_refused(reached: str) -> None:
    async with (
        counting_rollout() as rollout,
        front(rollout) as client,
        client.session.post(client.url + reached, data=b"{") as answer,
    ):
        assert answer.status == 400


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (server.COMPLETIONS, f'{{"prompt": [3], "temperature": {10**400}}}', "temperature"),
        (server.COMPLETIONS, '{"prompt": "half of a pair: \\ud83d"}', "prompt"),
        (server.CHAT, '{"messages": [{"role": "user", "content": "\\ud83d"}]}', "messages"),
    ],
)
async def test_a_number_and_a_text_that_cannot_be_are_refused(
    path: str, body: str, field: str
) -> None:
    text = body.replace("{", f'{{"model": "{JOB.model}", ', 1)
    async with (
        counting_rollout() as rollout,
        front(rollout) as client,
        client.session.post(client.url + path, data=text) as answer,
    ):
        found = await answer.json() if answer.status == 400 else {"error": {}}
        assert (answer.status, found["error"].get("param")) == (400, field)


# --- trajectories ------------------------------------------------------------------------------

NAMED = {TRAJECTORY_HEADER: "t-1"}


class Sender:
    """Stands for the coordinator's endpoint."""

    def __init__(self, verdict: TrajectoryVerdict | None = TrajectoryVerdict.COUNTED) -> None:
        self.verdict = verdict
        self.sent: list[FinishedTrajectory] = []

    async def deliver(self, finished: FinishedTrajectory) -> TrajectoryVerdict:
        self.sent.append(finished)
        if self.verdict is None:
            raise TimeoutError
        return self.verdict


def training(rollout: CountingRollout, sender: Any) -> AbstractAsyncContextManager[FrontClient]:
    return front(rollout, job=FROM_FRONT, sender=sender)


async def reward(client: FrontClient, name: str = "t-1", **body: Any) -> tuple[int, Any]:
    url = f"{client.url}/v1/trajectories/{name}/reward"
    async with client.session.post(url, json=body) as answer:
        return answer.status, await answer.json()


async def say(client: FrontClient, *messages: dict[str, str], **more: Any) -> str:
    body = {"model": JOB.model, "messages": messages, "max_tokens": 6, **more}
    async with client.session.post(
        f"{client.url}/v1/chat/completions", json=body, headers=NAMED
    ) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers[TRAJECTORY_HEADER] == "t-1"
        content: str = (await answer.json())["choices"][0]["message"]["content"]
        return content


def kept(client: FrontClient) -> float | None:
    value = client.metrics.registry.get_sample_value
    return value("rollcall_front_trajectories", client.metrics.labels)


ASK = {"role": "user", "content": "hi"}


async def test_a_trajectory_of_two_turns_is_one_sample() -> None:
    sender = Sender()
    async with counting_rollout(number=2) as rollout, training(rollout, sender) as client:
        said = await say(client, ASK)
        answer = {"role": "assistant", "content": said}
        await say(client, ASK, answer, {"role": "user", "content": "go on"})
        status, body = await reward(client, reward=0.5, group="task-1")
        first, second = (request.prompt for request in rollout.engine.requests)
    assert (status, body) == (200, {"verdict": "counted"})
    (sent,) = sender.sent
    sampled, given = expected(first, 6), second[len(first) + 6 :]
    assert second[: len(first) + 6] == (*first, *sampled), "sampled tokens stay as they are"
    assert tokenizer().decode(given, special=True).startswith("<|im_end|>\n<|im_start|>user\ngo on")
    (part,) = sent.parts
    assert part.prompt == first
    assert part.sample.tokens == (*sampled, *given, *expected(second, 6))
    assert part.sample.versions == (*(2,) * 6, *(NOT_SAMPLED,) * len(given), *(2,) * 6)
    assert (part.sample.reward, sent.group, sent.trajectory) == (0.5, "task-1", "t-1")
    assert sent.oldest == Version(Lineage(1, 1), 2)


async def test_the_token_that_ends_a_turn_is_not_given_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chat template writes it behind the answer, too."""
    (end,) = tokenizer().eos

    async def generate(
        engine: CountingEngine, request: GenerationRequest
    ) -> AsyncGenerator[NewTokens, None]:
        engine.requests.append(request)
        yield NewTokens((70, end), (-0.5, -0.5), (0, 0), finished=True)

    monkeypatch.setattr(CountingEngine, "generate", generate)
    async with counting_rollout() as rollout, training(rollout, Sender()) as client:
        said = await say(client, ASK)
        answer = {"role": "assistant", "content": said}
        await say(client, ASK, answer, {"role": "user", "content": "go on"})
        first, second = (request.prompt for request in rollout.engine.requests)
    assert second[: len(first) + 2] == (*first, 70, end)
    given = tokenizer().decode(second[len(first) + 2 :], special=True)
    assert given.startswith("\n<|im_start|>user\ngo on")


async def test_a_trajectory_ends_once() -> None:
    sender = Sender()
    async with counting_rollout() as rollout, training(rollout, sender) as client:
        await say(client, ASK)
        assert (await reward(client, reward=1))[0] == 200
        assert (await reward(client, reward=1))[0] == 409
        async with client.session.post(
            f"{client.url}/v1/completions",
            json={"model": JOB.model, "prompt": [3]},
            headers=NAMED,
        ) as answer:
            assert answer.status == 409, "it has its reward"
    assert len(sender.sent) == 1


async def test_a_second_reward_is_refused_while_the_first_is_decided_about() -> None:
    decided = asyncio.Event()

    class Slow(Sender):
        async def deliver(self, finished: FinishedTrajectory) -> TrajectoryVerdict:
            self.sent.append(finished)
            async with asyncio.timeout(2):
                await decided.wait()
            return TrajectoryVerdict.COUNTED

    sender = Slow()
    async with counting_rollout() as rollout, training(rollout, sender) as client:
        await say(client, ASK)
        first = asyncio.create_task(reward(client, reward=1))
        while not sender.sent:
            await asyncio.sleep(0.001)
        assert (await reward(client, reward=0))[0] == 409
        decided.set()
        assert (await first)[0] == 200
    assert len(sender.sent) == 1


async def test_every_answer_has_the_name_of_its_trajectory_also_one_that_the_front_made() -> None:
    names = []
    async with counting_rollout() as rollout, training(rollout, Sender()) as client:
        for stream in (False, True):
            body = {"model": JOB.model, "prompt": [3], "max_tokens": 2, "stream": stream}
            url = f"{client.url}/v1/completions"
            async with client.session.post(url, json=body) as answer:
                await answer.read()
                names.append(answer.headers[TRAJECTORY_HEADER])
        for name in names:
            assert (await reward(client, name, reward=1))[0] == 200
    assert len(set(names)) == 2


async def test_two_answers_to_one_prompt_are_two_samples() -> None:
    sender = Sender()
    async with counting_rollout() as rollout, training(rollout, sender) as client:
        await say(client, ASK, n=2)
        assert (await reward(client, reward=1))[0] == 200
    (sent,) = sender.sent
    first, second = sent.parts
    assert first.prompt == second.prompt == tuple(tokenizer().encode(PROMPT))
    assert len(first.sample.tokens) == len(second.sample.tokens) == 6


@pytest.mark.parametrize(
    "bounds",
    [{"most_trajectories": 1}, {"most_tokens": 10}, {"trajectory_seconds": 1e-6}],
    ids=lambda bounds: next(iter(bounds)),
)
async def test_what_a_pod_forgets_is_not_lost(bounds: dict[str, Any]) -> None:
    """Its copies have bounds; all is with the coordinator."""
    sender, settings = Sender(), FrontConfig(**bounds)
    async with (
        counting_rollout() as rollout,
        front(rollout, settings=settings, job=FROM_FRONT, sender=cast("Any", sender)) as client,
    ):
        for name in ("a", "b"):
            body = {"model": JOB.model, "prompt": [3, 4], "max_tokens": 5}
            url, header = f"{client.url}/v1/completions", {TRAJECTORY_HEADER: name}
            async with client.session.post(url, json=body, headers=header) as answer:
                assert answer.status == 200
        assert kept(client) == 1
        status = (await reward(client, "a", reward=1))[0]
    # The job says how long a trajectory is kept at all.
    assert status == (409 if "trajectory_seconds" in bounds else 200)
    assert len(sender.sent) == (0 if "trajectory_seconds" in bounds else 1)


async def test_an_answer_that_comes_after_the_reward_is_not_kept() -> None:
    async with counting_rollout(pause=0.02) as rollout, training(rollout, Sender()) as client:
        await say(client, ASK)
        late = asyncio.create_task(say(client, ASK))
        while rollout.engine.running == 0:
            await asyncio.sleep(0.001)
        assert (await reward(client, reward=1))[0] == 200
        await late
        assert kept(client) == 0


async def test_a_reward_that_the_trainer_does_not_take_now_may_be_sent_again() -> None:
    sender = Sender(None)
    async with counting_rollout() as rollout, training(rollout, sender) as client:
        await say(client, ASK)
        assert (await reward(client, reward=1))[0] == 503
        sender.verdict = TrajectoryVerdict.DUPLICATE  # the first attempt did arrive
        assert await reward(client, reward=1) == (200, {"verdict": "duplicate"})
    assert sender.sent[0] == sender.sent[1]


async def test_a_dropped_trajectory_is_answered_with_the_reason() -> None:
    async with (
        counting_rollout() as rollout,
        training(rollout, Sender(TrajectoryVerdict.STALE)) as client,
    ):
        await say(client, ASK)
        status, body = await reward(client, reward=1)
    assert status == 409
    assert "stale" in body["error"]["message"]


@pytest.mark.parametrize("own", [{"temperature": 0.3}, {"top_p": 0.5}, {"top_k": 3}], ids=str)
async def test_what_is_sampled_in_another_way_is_not_trained_on(own: dict[str, Any]) -> None:
    sender = Sender()
    async with counting_rollout() as rollout, training(rollout, sender) as client:
        await say(client, ASK, **own)
        status, body = await reward(client, reward=1)
        assert kept(client) == 0
    assert status == 409
    assert "temperature" in body["error"]["message"]
    assert sender.sent == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"reward": "good"}, 400),
        ({"reward": True}, 400),
        ({"reward": 1e30}, 400),
        ({"reward": 10**400}, 400),
        ({"reward": 1, "group": 3}, 400),
        ({"reward": 1, "more": 1}, 400),
        ({"reward": 1}, 404),
    ],
)
async def test_a_wrong_reward_is_refused(body: dict[str, Any], status: int) -> None:
    async with counting_rollout() as rollout, training(rollout, Sender()) as client:
        url = f"{client.url}/v1/trajectories/t-1/reward"
        async with client.session.post(url, json=body) as answer:
            assert answer.status == status


async def test_a_job_with_prompts_takes_no_rewards() -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        status, body = await reward(client, reward=1)
    assert status == 409
    assert "builtin:front" in body["error"]["message"]


@pytest.mark.parametrize("name", ["x" * 129, "a b", "-a"])
async def test_a_wrong_name_is_refused(name: str) -> None:
    async with (
        counting_rollout() as rollout,
        front(rollout) as client,
        client.session.post(
            f"{client.url}/v1/completions",
            json={"model": JOB.model, "prompt": [3]},
            headers={TRAJECTORY_HEADER: name},
        ) as answer,
    ):
        assert answer.status == 400
