"""Readings without kubectl: an answer, or an error that says what was asked and what came back."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hack.cluster.errors import KubectlError
from hack.cluster.kubectl import ApiReader
from tests.unit.kubeconfig import write_kubeconfig

ANSWERS = {"/found": (200, "yes"), "/missing": (404, "no such pod")}


class _Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections: set[tuple[str, int]]
    asked: list[str]
    came: threading.Event
    slow: threading.Event

    def do_GET(self) -> None:
        type(self).connections.add(self.client_address)
        type(self).asked.append(self.path)
        if self.path == "/slow":
            type(self).came.set()
            type(self).slow.wait(10)
            return
        status, body = ANSWERS.get(self.path, (200, self.headers.get("authorization", "")))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    _Server.connections, _Server.asked = set(), []
    _Server.came, _Server.slow = threading.Event(), threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def reader(server: ThreadingHTTPServer, tmp_path: Path) -> ApiReader:
    return reader_of(tmp_path, f"http://127.0.0.1:{server.server_port}")


def reader_of(folder: Path, address: str) -> ApiReader:
    return ApiReader(write_kubeconfig(folder, address))


def test_readings_share_a_connection_and_have_the_users_token(reader: ApiReader) -> None:
    assert [reader.get("/found", seconds=5) for _ in range(3)] == ["yes"] * 3
    assert reader.get("/token", seconds=5) == "Bearer secret"
    assert len(_Server.connections) == 1


def test_another_answer_is_an_error_with_its_body(reader: ApiReader) -> None:
    with pytest.raises(KubectlError, match="GET /missing: 404 no such pod"):
        reader.get("/missing", seconds=5)


def test_an_answer_that_is_late_is_an_error_at_once(reader: ApiReader) -> None:
    with pytest.raises(KubectlError, match=r"GET /slow: .*timed out"):
        reader.get("/slow", seconds=0.1)
    assert _Server.came.wait(30)
    _Server.slow.set()
    assert _Server.asked == ["/slow"]


def test_a_server_that_is_away_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KubectlError, match=r"GET /found: .*refused"):
        reader_of(tmp_path, "http://127.0.0.1:9").get("/found", seconds=1)
