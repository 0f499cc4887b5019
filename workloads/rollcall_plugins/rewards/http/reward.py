"""`http`: a service of one's own scores the response."""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

LONGEST_ANSWER = 64 << 10
_REFUSED = frozenset({400, 413, 422})  # the sample, as RFC 9110 has it
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})  # RFC 9110; 429: RFC 6585
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds; twice as long each time
_SHOWN = 200  # characters of an answer that an error shows


class RewardServiceError(Exception):
    """The service gave no reward."""


class _RefusedError(RewardServiceError):
    """The service takes no such sample."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """`url` is called by POST; `attempts` in all, each for `seconds`.

    `token_variable`: the environment variable whose value is sent as a bearer token.
    """

    url: str = ""
    attempts: int = 4
    seconds: float = 10.0
    token_variable: str = ""

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"url must begin with http:// or https://, not {self.url!r}")
        if parts.username or parts.password:
            raise ValueError("url must have no password; name a tokenVariable")
        if not 1 <= self.attempts <= 20:
            raise ValueError("attempts must be from 1 to 20")
        if not 0 < self.seconds <= 600:
            raise ValueError("seconds must be at most 600")


class HttpReward(NamedReward):
    """Sends a JSON object: prompt and response as text and as tokens, and the row.

    The answer is `{"reward": NUMBER}`. What a repetition may mend is tried again, with growing
    pauses: a broken connection, and the statuses of an overloaded service. A response that the
    service refuses has the reward 0 if it takes an empty one for the same prompt; else the service,
    or the row, is at fault.
    """

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        self._settings = read_settings(HttpSettings, config, field=field)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        name = self._settings.token_variable
        if name:
            if not os.environ.get(name):
                raise SpecError(f"{field}.tokenVariable", f"the container has no variable {name}")
            self._headers["Authorization"] = f"Bearer {os.environ[name]}"

    def __call__(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        *,
        row: Mapping[str, Any],
        response_text: str,
        prompt_text: str = "",
    ) -> float:
        sample = {
            "prompt": prompt_text,
            "response": response_text,
            "promptTokens": list(prompt),
            "responseTokens": list(response),
            "row": dict(row),
        }
        try:
            return self._reward(sample)
        except _RefusedError as error:
            self._reward(sample | {"response": "", "responseTokens": []})
            log.warning("the service refuses a response, which gets 0: %s", error)
            return 0.0

    def _reward(self, sample: Mapping[str, Any]) -> float:
        try:
            body = json.dumps(sample, allow_nan=False).encode()
        except ValueError as error:
            raise RewardServiceError(f"the row holds NaN or Infinity: {error}") from error
        for attempt in range(1, self._settings.attempts + 1):
            try:
                status, answer = self._post(body)
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if status == 200:
                    return _reward(answer)
                said = answer[:_SHOWN].decode(errors="replace")
                if 300 <= status < 400:
                    said = "a redirect, which is not followed: name the service itself in url"
                problem = f"status {status}: {said}"
                if status in _REFUSED:
                    raise _RefusedError(f"{self._settings.url}: {problem}")
                if status not in _AGAIN:
                    break
            if attempt < self._settings.attempts:
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1))
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        raise RewardServiceError(f"{self._settings.url}: {problem}")

    def _post(self, body: bytes) -> tuple[int, bytes]:
        url = urlsplit(self._settings.url)
        connection = self._connect(url.hostname or "", url.port, secure=url.scheme == "https")
        try:
            target = f"{url.path or '/'}{'?' * bool(url.query)}{url.query}"
            connection.request("POST", target, body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read(LONGEST_ANSWER)
        finally:
            connection.close()

    def _connect(self, host: str, port: int | None, *, secure: bool) -> http.client.HTTPConnection:
        seconds = self._settings.seconds
        if not secure:
            return http.client.HTTPConnection(host, port, timeout=seconds)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=context)


def _reward(answer: bytes) -> float:
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise RewardServiceError(f"the answer is no JSON: {answer[:_SHOWN]!r}") from error
    reward = found.get("reward") if isinstance(found, dict) else None
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        raise RewardServiceError(f'the answer has no number "reward": {answer[:_SHOWN]!r}')
    return float(reward)
