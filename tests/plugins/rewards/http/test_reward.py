"""A service scores responses: what it is sent, and what becomes of each kind of failure."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rollcall_plugins.rewards.http import reward as http_service
from rollcall_runtime.tasks.reward_function import UnusableRewardError, load_reward
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import LETTERS, tiny_tokenizer


class Service:
    """Answers in turn with `answers`, (status, body); the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = [(200, '{"reward": 0.25}')]
        self.samples: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.paths: list[str] = []
        self.seconds = 0.0  # until it answers
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                service.samples.append(json.loads(self.rfile.read(length)))
                service.tokens.append(self.headers["Authorization"])
                service.paths.append(self.path)
                time.sleep(service.seconds)
                status, body = service.answers[0]
                if len(service.answers) > 1:
                    service.answers.pop(0)
                if not status:
                    self.connection.close()
                    return
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/score?task=a"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(http_service, "_FIRST_PAUSE", 0.01)
    found = Service()
    yield found
    found.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_tokenizer(LETTERS).save_pretrained(tmp_path)
    return tmp_path


def score(service: Service, directory: Path, **config: Any) -> float:
    reward = load_reward("http", {"url": service.url, **config}, directory=directory)
    return reward((3, 4), (5,), {"answer": "c"})


def test_the_service_gets_text_tokens_and_row(service: Service, directory: Path) -> None:
    assert score(service, directory) == 0.25
    (sample,) = service.samples
    assert sample["promptTokens"] == [3, 4]
    assert sample["responseTokens"] == [5]
    assert sample["row"] == {"answer": "c"}
    assert sample["prompt"]
    assert sample["response"]
    assert service.tokens == [None]
    assert service.paths == ["/score?task=a"]


def test_a_row_that_is_no_json_is_not_sent(service: Service, directory: Path) -> None:
    """As an agent's own reward may bring one."""
    reward = load_reward("http", {"url": service.url}, directory=directory)
    with pytest.raises(UnusableRewardError, match="the row holds NaN or Infinity"):
        reward((3, 4), (5,), {"answer": float("nan")})
    assert service.samples == []


def test_a_token_comes_from_the_environment(
    service: Service, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCORER_TOKEN", "s3cret")
    score(service, directory, tokenVariable="SCORER_TOKEN")
    assert service.tokens == ["Bearer s3cret"]


@pytest.mark.parametrize(
    "first", [*((status, "busy") for status in (408, 429, 500, 502, 503, 504)), (0, "")]
)
def test_what_may_pass_is_tried_again(
    service: Service, directory: Path, first: tuple[int, str]
) -> None:
    service.answers = [first, first, *service.answers]
    assert score(service, directory) == 0.25
    assert len(service.samples) == 3


def test_a_service_that_stays_away_costs_the_sample(service: Service, directory: Path) -> None:
    service.answers = [(503, "busy")]
    with pytest.raises(UnusableRewardError, match="status 503: busy"):
        score(service, directory, attempts=2)
    assert len(service.samples) == 2


def test_an_attempt_ends_after_its_seconds(service: Service, directory: Path) -> None:
    service.seconds = 1.0
    with pytest.raises(UnusableRewardError, match="timed out"):
        score(service, directory, attempts=1, seconds=0.1)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((404, "which task?"), "status 404: which task?"),
        ((501, "no"), "status 501: no"),
        ((307, "a secret"), "status 307: a redirect, which is not followed: name the service"),
        ((200, "0.5"), 'the answer has no number "reward"'),
        ((200, '{"reward": true}'), 'the answer has no number "reward"'),
        ((200, "oops"), "the answer is no JSON"),
        ((200, '{"reward": NaN}'), "not_finite"),
    ],
)
def test_a_wrong_answer_is_not_asked_for_again(
    service: Service, directory: Path, answer: tuple[int, str], problem: str
) -> None:
    service.answers = [answer]
    with pytest.raises(UnusableRewardError, match=problem):
        score(service, directory)
    assert len(service.samples) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_response_that_the_service_refuses_has_the_reward_zero(
    service: Service, directory: Path, status: int
) -> None:
    service.answers = [(status, "odd text"), (200, '{"reward": 0.5}')]
    assert score(service, directory) == 0
    odd, empty = service.samples
    assert empty == odd | {"response": "", "responseTokens": []}


def test_a_service_that_refuses_an_empty_response_too_is_at_fault(
    service: Service, directory: Path
) -> None:
    service.answers = [(400, "which task?")]
    with pytest.raises(UnusableRewardError, match="status 400: which task"):
        score(service, directory)
    assert len(service.samples) == 2


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "url must begin with http:// or https://, not ''"),
        ({"url": "ftp://a"}, "url must begin with http:// or https://"),
        ({"url": "http://me:secret@a"}, "url must have no password"),
        ({"url": "http://a", "attempts": 0}, "attempts must be from 1 to 20"),
        ({"url": "http://a", "seconds": 0}, "seconds must be at most 600"),
        ({"url": "http://a", "tokenVariable": "NO_SUCH"}, "the container has no variable NO_SUCH"),
    ],
)
def test_a_wrong_setting_is_refused(directory: Path, config: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        load_reward("http", config, directory=directory)
