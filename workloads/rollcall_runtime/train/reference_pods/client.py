"""Asks the reference's pods: whichever answer, and again when one does not."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

import aiohttp

from rollcall_protocol.pod_contract import LOGPROBS_ROUTE, REFERENCE_PORT
from rollcall_protocol.wire.addresses import host_port
from rollcall_runtime.train.reference_pods.exchange import (
    ExchangeError,
    answer_bytes,
    decode_answer,
    encode_request,
)
from rollcall_runtime.worker.asyncio_helpers import cancel_all
from rollcall_runtime.worker.backoff import BackoffDelays
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.http_client import plain_session
from rollcall_runtime.worker.identity.own_tokens import bearer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.worker.identity.own_tokens import TokenSource
    from rollcall_runtime.worker.identity.tls import TlsContext

log = logging.getLogger(__name__)

ATTEMPT_SECONDS = 300.0  # for one request; a process group waits 600 s for a rank
CONNECT_SECONDS = 5.0
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0  # seconds between attempts
_REFUSED = frozenset({400, 413, 422})


class Inquiry:
    """Parts of a batch, and the answers that are there so far, in the parts' order."""

    def __init__(self, parts: Sequence[TrainBatch]) -> None:
        self.parts = parts
        self.answers: list[Tensor | None] = [None] * len(parts)
        self.open = deque(range(len(parts)))


class ReferenceClient:
    """The pods behind the DNS name `host`, as one rank asks them; it asks each for one part at a
    time.

    `resolve` gives the addresses of those that are ready. With `tls` they must prove that they are
    `host`.
    """

    def __init__(
        self,
        host: str,
        *,
        token: TokenSource,
        tls: TlsContext | None = None,
        port: int = REFERENCE_PORT,
        resolve: Callable[[str], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        self.host = host
        self._token, self._tls, self._port = token, tls, port
        self._resolve = resolve or _addresses

    def ask(self, inquiry: Inquiry, *, seconds: float) -> str:
        """Have the open parts answered; returns "", or after about `seconds` why some are open.

        An attempt that has begun by then is waited for, ATTEMPT_SECONDS at most. SpecError if a pod
        refuses a part for good. A token that is refused is shown again, as it is by then.
        """
        return asyncio.run(self._ask(inquiry, time.monotonic() + seconds))

    async def _ask(self, inquiry: Inquiry, until: float) -> str:
        backoff = BackoffDelays(first=FIRST_DELAY, longest=LONGEST_DELAY)
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_SECONDS, sock_connect=CONNECT_SECONDS)
        limit = aiohttp.TCPConnector(limit=0)
        async with plain_session(connector=limit, timeout=timeout) as session:
            while inquiry.open:
                before = len(inquiry.open)
                problem = await self._ask_all(session, inquiry)
                if not inquiry.open:
                    break
                if time.monotonic() >= until:
                    return problem
                if len(inquiry.open) < before:
                    backoff.reset()
                delay = backoff.next_delay()
                log.info("the reference did not answer (%s), again in %.1f s", problem, delay)
                await asyncio.sleep(delay)
        return ""

    async def _ask_all(self, session: aiohttp.ClientSession, inquiry: Inquiry) -> str:
        """Ask every pod until no part is open or it fails once; why one failed."""
        try:
            addresses = list(await self._resolve(self.host))
        except OSError as error:
            return f"{self.host}: {error}"
        random.shuffle(addresses)  # ranks with few parts shall not all ask the same pod
        work = [asyncio.ensure_future(self._work(session, a, inquiry)) for a in addresses]
        try:
            problems = await asyncio.gather(*work)
        finally:
            await cancel_all(work)
        return next(filter(None, problems), f"{self.host} has no address")

    async def _work(self, session: aiohttp.ClientSession, address: str, inquiry: Inquiry) -> str:
        while inquiry.open:
            number = inquiry.open.popleft()
            try:
                answer = await self._post(session, address, inquiry.parts[number])
            except (aiohttp.ClientError, TimeoutError, OSError, ExchangeError) as error:
                inquiry.open.append(number)  # for another pod
                return f"{address}: {str(error) or type(error).__name__}"
            inquiry.answers[number] = answer
        return ""

    async def _post(self, session: aiohttp.ClientSession, address: str, part: TrainBatch) -> Tensor:
        scheme = "https" if self._tls else "http"
        async with session.post(
            f"{scheme}://{host_port(address, self._port)}{LOGPROBS_ROUTE}",
            data=encode_request(part),
            headers=bearer(self._token()),
            expect100=True,
            ssl=self._tls() if self._tls else True,
            server_hostname=self.host if self._tls else None,
        ) as answer:
            if answer.status in {401, 403}:
                text = (await answer.content.read(_LONGEST_MESSAGE)).decode(errors="replace")
                raise ExchangeError(f"it refuses this pod's token: {text}")
            if answer.status in _REFUSED:
                text = (await answer.content.read(_LONGEST_MESSAGE)).decode(errors="replace")
                raise SpecError("spec.reference", f"its pod {address} refuses a request: {text}")
            if answer.status != 200:
                raise ExchangeError(f"status {answer.status}")
            length, most = answer.content_length, answer_bytes(part)
            if length is None or length > most:
                raise ExchangeError(f"an answer of {length} bytes, {most} at most were expected")
            return decode_answer(await answer.read(), part)


_LONGEST_MESSAGE = 500


async def _addresses(host: str) -> list[str]:
    """Of the pods that are ready: a headless Service's name leads to all of them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(info[4][0]) for info in found})
