"""What vLLM 0.32 answers on the routes that the engine calls, as recorded from a real one."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from rollcall_runtime.rollout.engines.server.client import ServerClient

METRICS = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 18843.0
# HELP process_resident_memory_bytes Resident memory size in bytes.
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1.5e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="/models/qwen"} 3.0
# HELP http_requests_total Total number of requests by method, status and handler.
# TYPE http_requests_total counter
http_requests_total{handler="/pause",method="POST",status="2xx"} 1.0
"""


class StubVllm:
    """In the place of `ServerProcess`: answers on a Unix socket, in this process.

    `pieces` are the choices of each stream; `refused` maps routes to the error that they give;
    `slow` are routes that do not answer in time. `called` are the routes that were called, and
    `adapters` those that are loaded, with their folders. While it is `held` a stream that has no
    end of its own waits for `release`.
    """

    def __init__(self, folder: Path) -> None:
        self.failure = ""
        self.called: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.queries: dict[str, dict[str, str]] = {}
        self.pieces: list[dict[str, Any]] = []
        self.refused: dict[str, str] = {}
        self.slow: set[str] = set()
        self.report = ""
        self.adapters: dict[str, str] = {}
        self.held = asyncio.Event()
        self.held.set()
        self._last: dict[str, Any] | None = None
        self._folder = folder
        self._runner: web.AppRunner | None = None
        self._client: ServerClient | None = None

    @property
    def client(self) -> ServerClient:
        assert self._client is not None
        return self._client

    def fail(self, why: str) -> None:
        self.failure = self.failure or why

    async def start(self, *, seconds: float) -> None:
        application = web.Application()
        application.router.add_post("/inference/v1/generate", self._generate)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_post("/{route:.+}", self._call)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        socket = self._folder / "stub.sock"
        await web.UnixSite(self._runner, str(socket)).start()
        self._client = ServerClient(socket=socket)

    async def close(self) -> None:
        await self.client.close()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    async def _call(self, request: web.Request) -> web.Response:
        route = f"/{request.match_info['route']}"
        body = await request.json()
        action = body.get("update_info", {})
        self.queries[route] = dict(request.query)
        self.called.append(" ".join([route, *filter(None, [action.get("action")])]))
        if route in self.slow:
            await asyncio.sleep(30)
        if route in self.refused:
            error = {"message": self.refused[route], "code": 500}
            return web.json_response({"error": error}, status=500)
        if route == "/v1/load_lora_adapter":
            self.adapters[body["lora_name"]] = body["lora_path"]
        if route == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        if action.get("action") == "prepare":
            (Path(action["reports"]) / "0").write_text(self.report)
        return web.json_response({})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        stream = web.StreamResponse()
        await stream.prepare(request)
        pieces = self.pieces
        for piece in pieces:
            await stream.write(f"data: {json.dumps({'choices': [piece]})}\n\n".encode())
        if not (pieces and pieces[-1]["finish_reason"]) and not self.held.is_set():
            await self.held.wait()
            await stream.write(f"data: {json.dumps({'choices': [self._last]})}\n\n".encode())
        await stream.write(b"data: [DONE]\n\n")
        return stream

    def release(self, last: dict[str, Any]) -> None:
        """End the streams that are held with the piece `last`."""
        self._last = last
        self.held.set()


def piece(*tokens: int, logprob: float = -1.0, finish: str | None = None, **more: Any) -> Any:
    """A choice of a stream: these tokens, and how the response ended, if it has."""
    content = [{"token_id": token, "logprob": logprob} for token in tokens]
    logprobs = {"content": content}
    return {"index": 0, "token_ids": tokens, "logprobs": logprobs, "finish_reason": finish, **more}
