"""No client of the project follows a redirect, decompresses an answer, or keeps a cookie."""

import ast
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from rollcall_operator.kube import http_client as of_operator
from rollcall_runtime.worker import http_client as of_workers

ROOT = Path(__file__).parents[2]
SOURCES = ("operator", "workloads")
MAKERS = {
    "operator/rollcall_operator/kube/http_client.py",
    "workloads/rollcall_runtime/worker/http_client.py",
}
# A kubelet and an API server, which are asked for the redirect itself.
HAND_ON_REDIRECTS = {
    "operator/rollcall_local/local_cluster.py",
    "operator/rollcall_local/api_server/pod_routes.py",
}
# Clients that follow redirects by themselves. http.client does not, and decompresses nothing.
FOLLOW = {"httpx", "requests", "urllib3", "pycurl", "websockets", "urllib.request"}
FOLLOW_NOT = {"getproxies", "proxy_bypass"}
MAKE = {"ClientSession", "urlopen", "build_opener", "AsyncClient"}


def problems(path: Path) -> list[str]:
    """What `path` has of clients that are not made by MAKERS."""
    name = str(path.relative_to(ROOT))
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names) if {alias.name for alias in names} & FOLLOW:
                found.append("import")
            case ast.ImportFrom(module=str(module), names=names) if module in FOLLOW:
                if not {alias.name for alias in names} <= FOLLOW_NOT:
                    found.append("import")
            case ast.Call(func=ast.Attribute(attr=str(called)) | ast.Name(id=str(called))):
                if called in MAKE and name not in MAKERS:
                    found.append(called)
                elif any(each.arg == "hands_on_redirects" for each in node.keywords):
                    if name not in HAND_ON_REDIRECTS | MAKERS:
                        found.append("hands_on_redirects")
                elif any(each.arg == "allow_redirects" for each in node.keywords):
                    text = ast.unparse(node)
                    if "allow_redirects=False" not in text:
                        found.append("allow_redirects")
    return [f"{name}: {each}" for each in found]


def test_every_client_is_one_that_follows_no_redirect() -> None:
    paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    assert [each for path in paths for each in problems(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import requests",
        "from urllib.request import urlopen",
        "import aiohttp\nsession = aiohttp.ClientSession()",
        "from aiohttp import ClientSession\nsession = ClientSession(trust_env=False)",
        "open_session(hands_on_redirects=True)",
        "session.get(url, allow_redirects=True)",
    ],
)
def test_the_check_finds_others(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.unit.test_http_clients.ROOT", tmp_path)
    (tmp_path / "client.py").write_text(text)
    assert problems(tmp_path / "client.py")


Open = Callable[[], aiohttp.ClientSession]
OPEN: list[Open] = [of_operator.open_session, of_workers.plain_session]


@pytest.fixture(params=OPEN, ids=["operator", "workers"])
async def session(request: pytest.FixtureRequest) -> AsyncIterator[aiohttp.ClientSession]:
    async with request.param() as opened:
        yield opened


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, list[str]]]:
    """Where it listens, and which paths it was asked for, with what is shown."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        cookie, encoding = request.headers.get("Cookie", ""), request.headers["Accept-Encoding"]
        asked.append(f"{request.method} {request.path} {cookie}{encoding}")
        headers = {"Location": "/elsewhere", "Set-Cookie": "a=b; Path=/"}
        if request.path == "/encoded":
            headers["Content-Encoding"] = "gzip"
        status = int(request.query.get("status", "200"))
        return web.Response(status=status, headers=headers, body=b"another service's secret")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0).start()
    yield f"http://localhost:{runner.addresses[0][1]}", asked
    await runner.cleanup()


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_a_redirect_is_a_failed_answer(
    session: aiohttp.ClientSession, server: tuple[str, list[str]], method: str, status: int
) -> None:
    url, asked = server
    with pytest.raises(aiohttp.ClientOSError, match=f"{status}, a redirect, which is not") as error:
        await session.request(method, f"{url}/first?status={status}", data=b"roster")
    assert asked == [f"{method} /first identity"]
    assert "secret" not in str(error.value)
    assert "elsewhere" not in str(error.value)


async def test_a_stream_of_messages_follows_no_redirect_either(
    session: aiohttp.ClientSession, server: tuple[str, list[str]]
) -> None:
    url, asked = server
    with pytest.raises(aiohttp.ClientOSError, match="a redirect"):
        await session.ws_connect(f"{url}/first?status=307")
    assert len(asked) == 1


async def test_a_compressed_answer_is_refused(
    session: aiohttp.ClientSession, server: tuple[str, list[str]]
) -> None:
    with pytest.raises(aiohttp.ClientOSError, match="compressed body, which was not asked for"):
        await session.get(f"{server[0]}/encoded")
    assert session.auto_decompress is False


async def test_no_cookie_is_sent_back(
    session: aiohttp.ClientSession, server: tuple[str, list[str]]
) -> None:
    url, asked = server
    for _ in range(2):
        async with session.get(f"{url}/first"):
            pass
    assert asked == ["GET /first identity"] * 2
