"""Answers of an API server over a socket, through the official client."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from aiohttp import web

from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.errors import NotFoundError, UnreachableError
from rollcall_operator.kube.resources import PODS
from tests.unit.rollcall_operator.kube.api_server import client_of

HISTORY = b'{"step": 1}\n{"step": 2}\n'
PROXY = "/api/v1/namespaces/ns/pods/reverse-trainer-0:9090/proxy/history"


def client(folder: Path, answers: dict[str, bytes]) -> AbstractAsyncContextManager[KubeClient]:
    """A client of a server that answers GETs of these paths."""

    async def answer(request: web.Request) -> web.Response:
        found = answers.get(request.path)
        return web.Response(body=found, status=404 if found is None else 200)

    return client_of(folder, answer)


async def history(of: KubeClient, *, most_bytes: int) -> bytes:
    return await of.read_from_pod(
        namespace="ns",
        name="reverse-trainer-0",
        port=9090,
        route="/history",
        most_bytes=most_bytes,
    )


async def test_an_object_is_its_json(tmp_path: Path) -> None:
    async with client(tmp_path, {"/api/v1/namespaces/ns/pods/p": b'{"kind": "Pod"}'}) as api:
        assert await api.get(PODS, namespace="ns", name="p") == {"kind": "Pod"}
        with pytest.raises(NotFoundError):
            await api.get(PODS, namespace="ns", name="other")


async def test_what_a_pod_answers_comes_as_it_is(tmp_path: Path) -> None:
    async with client(tmp_path, {PROXY: HISTORY}) as api:
        assert await history(api, most_bytes=len(HISTORY)) == HISTORY


async def test_no_more_of_a_pods_answer_is_read_than_asked_for(tmp_path: Path) -> None:
    async with client(tmp_path, {PROXY: HISTORY}) as api:
        with pytest.raises(UnreachableError, match=f"longer than {len(HISTORY) - 1} bytes"):
            await history(api, most_bytes=len(HISTORY) - 1)


async def test_a_pod_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async with client(tmp_path, {}) as api:
        with pytest.raises(NotFoundError):
            await history(api, most_bytes=10)
