"""What vLLM itself says of the versions of tokens, beside what the engine makes of it."""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from rollcall_plugins.inference.vllm import engine
from rollcall_plugins.inference.vllm.server import choices

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from rollcall_runtime.rollout.engines.server.client import ServerClient


@contextmanager
def recorded() -> Iterator[Mapping[int, list[int]]]:
    """The version of each token of the responses that end meanwhile, by the request's seed."""
    found: dict[int, list[int]] = {}

    async def recording(
        client: ServerClient, body: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(choices(client, body)) as given:
            async for choice in given:
                spans = choice.get("weight_versions")
                if spans:
                    found[body["sampling_params"]["seed"]] = [
                        int(span["version"])
                        for span in spans
                        for _ in range(span["start"], span["end"])
                    ]
                yield choice

    with patch.object(engine, "choices", recording):
        yield found
