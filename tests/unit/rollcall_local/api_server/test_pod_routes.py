"""A pod's log, and what its HTTP server answers, through the API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from rollcall_local.api_server import pod_routes
from rollcall_operator.kube.errors import ApiError, NotFoundError, RefusedError, ServerError
from rollcall_operator.kube.resources import PODS
from tests.unit.rollcall_local.api_server.objects import Object, pod
from tests.unit.rollcall_local.api_server.served import Served, served

LARGE = b"x" * 300_000


@asynccontextmanager
async def serving_pod(api: Served) -> AsyncIterator[int]:
    """A pod whose HTTP server is there; its port."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.raw_path)
        assert "Authorization" not in request.headers, "the token is for the API server alone"
        if request.path == "/moved":
            raise web.HTTPFound("http://127.0.0.1:1/elsewhere")
        if request.path == "/failed":
            return web.Response(status=500, text="no")
        if request.path == "/large":
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(3):
                await response.write(LARGE)
                await asyncio.sleep(0)
            return response
        return web.Response(text=f"{request.raw_path}")

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.store.create(PODS, pod())
    api.store.set_status(PODS, "ns", "p", {"status": {"podIP": "127.0.0.1"}})
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def read(api: Served, route: str, *, name: str = "p", port: int) -> bytes:
    return await api.client.read_from_pod(
        namespace="ns", name=name, port=port, route=route, most_bytes=1 << 22
    )


async def test_a_pod_is_asked_what_was_asked(tmp_path: Path) -> None:
    async with served(tmp_path) as api, serving_pod(api) as port:
        assert await read(api, "/v1/a", port=port) == b"/v1/a"
        assert (
            await read(api, "/metrics?name=a&name=b%20c", port=port) == b"/metrics?name=a&name=b+c"
        )
        assert await read(api, "/", name="http:p", port=port) == b"/"


async def test_an_answer_is_passed_on_whole(tmp_path: Path) -> None:
    async with served(tmp_path) as api, serving_pod(api) as port:
        assert await read(api, "/large", port=port) == 3 * LARGE


async def test_an_answer_without_end_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_routes, "_MOST_BYTES", len(LARGE))
    async with served(tmp_path) as api, serving_pod(api) as port:
        with pytest.raises(ServerError, match=f"answers with more than {len(LARGE)} bytes"):
            await read(api, "/large", port=port)


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with served(tmp_path) as api, serving_pod(api) as port:
        path = f"/api/v1/namespaces/ns/pods/p:{port}/proxy/moved"
        async with api.http.get(path, allow_redirects=False) as answer:
            assert (answer.status, "Location" in answer.headers) == (302, False)


async def test_what_a_pod_refuses_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as api, serving_pod(api) as port:
        with pytest.raises(ServerError, match="500"):
            await read(api, "/failed", port=port)


async def test_a_pod_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        api.store.create(PODS, pod())
        with pytest.raises(ServerError, match=r"503 .*pod p has no address yet"):
            await read(api, "/", port=1)
        api.store.set_status(PODS, "ns", "p", {"status": {"podIP": "127.0.0.1"}})
        with pytest.raises(ServerError, match=r"503 .*pod p does not answer at port 1: "):
            await read(api, "/", port=1)
        with pytest.raises(NotFoundError):
            await read(api, "/", name="q", port=1)


async def test_a_proxy_needs_a_pod_and_a_port(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        for name in ("p", "p:", "p:x", ":80", "https:p:80", "a:b:80"):
            status, answer = await api.ask("GET", f"/api/v1/namespaces/ns/pods/{name}/proxy/")
            assert (status, answer["message"]) == (400, f"proxy: {name!r} is not POD:PORT")


# --- logs ----------------------------------------------------------------------------------------


async def test_a_log_is_read_as_it_was_asked_for(tmp_path: Path) -> None:
    asked: list[tuple[str, str, int | None, int | None]] = []

    def read_log(found: Object, container: str, lines: int | None, seconds: int | None) -> bytes:
        asked.append((found["metadata"]["name"], container, lines, seconds))
        return b"said\xff\n"

    async with served(tmp_path, read_log=read_log) as api:
        body = pod()
        body["spec"]["initContainers"] = [{"name": "first", "image": "i"}]
        api.store.create(PODS, body)

        async def log(**query: str) -> bytes:
            return await api.client.read_log(namespace="ns", name="p", query=query, most_bytes=1000)

        assert await log() == b"said\xff\n"
        await log(container="first", tailLines="5", sinceSeconds="60")
        assert asked == [("p", "worker", None, None), ("p", "first", 5, 60)]
        with pytest.raises(RefusedError, match="container: 'x' is none of worker, first"):
            await log(container="x")
        with pytest.raises(RefusedError, match="tailLines: '-1' is no number"):
            await log(tailLines="-1")
        with pytest.raises(ApiError, match='pods "q" not found'):
            await api.client.read_log(namespace="ns", name="q", query={}, most_bytes=1000)
