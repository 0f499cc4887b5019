"""Follows the public keys by which the cluster signs service-account tokens."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.errors import ApiError, UnreachableError
from rollcall_protocol.wire.trust_bundle import TrustBundle

log = logging.getLogger(__name__)

READ_SECONDS = 600.0
"""How often the keys are read; API servers publish a new one long before they sign by it."""
SOONEST_SECONDS = 10.0
"""Between two readings, however many coordinators refuse a token."""
RETRY_SECONDS = 2.0


class TrustKeys:
    """The newest TrustBundle. `operator` is the subject of the operator's own tokens."""

    def __init__(self, client: KubeClient, *, operator: str) -> None:
        self._client, self._operator = client, operator
        self._wanted = asyncio.Event()
        self.current: TrustBundle | None = None

    async def wait_until_known(self, report: Callable[[str], None]) -> None:
        """Read them, without end; `report` gets each new problem. No worker starts without."""
        reported = ""
        while problem := await self._read():
            if problem != reported:
                log.warning("Waiting for the keys of the cluster's tokens: %s", problem)
                report(problem)
                reported = problem
            await asyncio.sleep(RETRY_SECONDS)

    async def run(self, changed: Callable[[], None]) -> None:
        """Read them again and again, until cancelled; `changed` is called when they are others.

        What cannot be read changes nothing.
        """
        while True:
            before = self.current
            read = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    await self._wanted.wait()
            await asyncio.sleep(max(0.0, read + SOONEST_SECONDS - time.monotonic()))
            self._wanted.clear()
            if problem := await self._read():
                log.warning("The keys of the cluster's tokens stay as they were: %s", problem)
            if self.current != before:
                changed()

    def look_now(self) -> None:
        """A coordinator refused the operator's token: the keys may have changed."""
        self._wanted.set()

    async def _read(self) -> str:
        """Why they could not be read; empty if they were."""
        try:
            issuer, keys = await self._client.token_keys()
            ordered = tuple(sorted(keys, key=lambda key: str(key.get("kid"))))
            bundle = TrustBundle(issuer, self._operator, ordered)
        except (ApiError, UnreachableError) as error:
            return f"cannot read them: {error}"
        except ValueError as error:
            return f"the API server's answer is of no use: {error}"
        if bundle != self.current:
            log.info("The cluster signs tokens by %d keys", len(keys))
        self.current = bundle
        return ""
