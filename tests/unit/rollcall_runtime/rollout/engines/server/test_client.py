"""Calls of an inference server: what it says is bounded, and whose fault an error is."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from rollcall_runtime.rollout.engines.server import client as client_module
from rollcall_runtime.rollout.engines.server.client import InferenceServerError, ServerClient

Answer = Callable[[], web.Response]


@asynccontextmanager
async def answering(folder: Path, answer: Answer) -> AsyncIterator[ServerClient]:
    """A client of a server that gives this answer to everything."""

    async def handle(_: web.Request) -> web.Response:
        return answer()

    application = web.Application()
    application.router.add_route("*", "/{route}", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(folder / "socket")).start()
    client = ServerClient(socket=folder / "socket")
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


async def events(client: ServerClient) -> list[object]:
    return [event async for event in client.stream("/generate", {})]


async def test_a_stream_is_the_objects_of_its_events(tmp_path: Path) -> None:
    text = 'data: {"a": 1}\n\n: a comment\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'
    async with answering(tmp_path, lambda: web.Response(text=text)) as client:
        assert await events(client) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("data: {\n\n", "a line that is no JSON"),
        ("data: [1]\n\n", "a line that is no object"),
        ("data: " + "x" * (3 * client_module.LINE_BYTES), "a line that is too long"),
        ('data: {"error": {"message": "it broke", "code": 500}}\n\n', "it broke"),
        ('data: {"error": "it broke"}\n\n', "it broke"),
    ],
)
async def test_what_the_server_does_wrong_in_a_stream_is_its_fault(
    tmp_path: Path, text: str, problem: str
) -> None:
    async with answering(tmp_path, lambda: web.Response(text=text)) as client:
        with pytest.raises(InferenceServerError, match=problem):
            await events(client)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(text='data: {"error": {"message": "too long", "code": 400}}\n\n'),
        lambda: web.json_response({"error": {"message": "too long"}}, status=400),
        lambda: web.json_response({"detail": "too long"}, status=422),
        lambda: web.json_response({"message": "too long"}, status=413),
    ],
)
async def test_a_request_that_is_refused_as_such_is_a_value_error(
    tmp_path: Path, answer: Answer
) -> None:
    async with answering(tmp_path, answer) as client:
        with pytest.raises(ValueError, match="too long"):
            await events(client)


async def test_an_answer_is_read_as_far_as_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "REPLY_BYTES", 100)
    async with answering(tmp_path, lambda: web.Response(text="x" * 100)) as client:
        assert len(await client.post("/pause", seconds=5)) == 100
    async with answering(tmp_path, lambda: web.Response(text="x" * 101)) as client:
        with pytest.raises(InferenceServerError, match="more than 100 bytes"):
            await client.post("/pause", seconds=5)


async def test_of_a_servers_metrics_only_its_own_are_given_on(tmp_path: Path) -> None:
    text = "# TYPE python_info gauge\npython_info 1\n# TYPE sglang:x gauge\nsglang:x 3\n"
    async with answering(tmp_path, lambda: web.Response(text=text)) as client:
        assert await client.metrics("sglang", seconds=5) == b"# TYPE sglang:x gauge\nsglang:x 3\n"
