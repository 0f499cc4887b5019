"""The stand-in's routes. Run as a program it takes SGLang's arguments.

The file that ROLLCALL_SGLANG_FAULTS names maps routes to faults: `refuse`, `hang`, `die`,
`no object` and those that are named below. It may change while the server runs.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.plugins.inference.sglang.double.contract import (
    CONTRACT,
    BrokenContractError,
    check_answer,
    check_arguments,
    check_record,
)
from tests.plugins.inference.sglang.double.scheduler import VOCABULARY, Request, Scheduler

METRICS = """\
# HELP python_gc_objects_collected_total Objects collected during gc
python_gc_objects_collected_total{{generation="0"}} 18843.0
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs {running}.0
"""


class SglangServer:
    """SGLang's routes that the contract has, for those with the key."""

    def __init__(self, arguments: list[str]) -> None:
        given = check_arguments(arguments)
        if not Path(given["--model-path"]).is_dir() or given["--load-format"] != "dummy":
            raise BrokenContractError("it starts without weights, on the model's directory")
        self.port, self._model = int(given["--port"]), given["--model-path"]
        self._length = int(given["--context-length"])
        self._key = json.loads(Path(given["--config"]).read_text())["api-key"]
        self._scheduler = Scheduler(ranks=int(given["--tp-size"]), fault=self._fault)
        self._paused = asyncio.Condition()
        self._is_paused = False
        self._steps: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Future[Any]] = set()

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guarded])
        for route, recorded in CONTRACT["routes"].items():
            for method in recorded["methods"]:
                application.router.add_route(
                    method, route, getattr(self, "on" + route.replace("/", "_"))
                )
        application.router.add_get("/metrics", self._metrics)
        application.cleanup_ctx.append(self._scheduling)
        return application

    async def _scheduling(self, _: web.Application) -> AsyncIterator[None]:
        self._steps = asyncio.create_task(self._scheduler.run())
        yield
        self._steps.cancel()

    @staticmethod
    def _fault(route: str) -> str:
        return str(
            json.loads(Path(os.environ["ROLLCALL_SGLANG_FAULTS"]).read_text()).get(route, "")
        )

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """The key, faults, and the contract."""
        if request.path == "/metrics":
            return await self._metrics(request)
        if request.headers.get("Authorization") != f"Bearer {self._key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        fault = self._fault(request.path)
        if fault == "refuse":
            return web.json_response({"error": {"message": "it is refused"}}, status=500)
        if fault == "no object":
            return web.json_response([1])
        if fault == "hang":
            await asyncio.sleep(600)
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            answer: web.StreamResponse = await self._handled(request, handler)
        except BrokenContractError as error:
            return web.json_response({"object": "error", "message": f"{error}"}, status=400)
        return answer

    async def _handled(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """A call whose caller is gone is made all the same, but for that of a stream."""
        call = asyncio.ensure_future(handler(request))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        answer: web.StreamResponse
        if request.path == "/generate":
            answer = await call
        else:
            answer = await asyncio.shield(call)
        return answer

    async def _body(self, request: web.Request) -> dict[str, Any]:
        body = await request.json()
        record = CONTRACT["routes"][request.path]["body"]
        # SGLang also holds this one to the schema that its two servers have in common.
        check_record("GenerateRequest" if record == "GenerateReqInput" else record, body)
        return dict(body)

    def _answer(
        self, request: web.Request, body: dict[str, Any], status: int = 200
    ) -> web.Response:
        check_answer(request.path, body)
        return web.json_response(body, status=status)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=METRICS.format(running=len(self._scheduler.running)))

    # --- routes --------------------------------------------------------------------------------

    async def on_server_info(self, request: web.Request) -> web.Response:
        state = await self._scheduler.ask(lambda: {"running": len(self._scheduler.running)})
        return self._answer(request, {"internal_states": [state], "version": CONTRACT["release"]})

    async def on_model_info(self, request: web.Request) -> web.Response:
        another = self._fault(request.path) == "another version"
        version = "6" if another else self._scheduler.version
        return self._answer(request, {"model_path": self._model, "weight_version": version})

    async def on_pause_generation(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        mode = body.get("mode", "abort")
        async with self._paused:
            self._is_paused = True
            if mode != "abort":  # it does not wait for the scheduler
                self._scheduler.send(lambda: self._scheduler.pause(mode))
            while mode == "abort":
                await self._scheduler.ask(lambda: self._scheduler.abort("", every=True))
                if not self._scheduler.running and self._fault(request.path) != "never paused":
                    break
                await asyncio.sleep(0.05)
        return self._answer(request, {"message": "paused", "status": "ok"})

    async def on_continue_generation(self, request: web.Request) -> web.Response:
        await self._body(request)
        async with self._paused:
            self._is_paused = False
            self._scheduler.send(self._scheduler.resume)
            self._paused.notify_all()
        return self._answer(request, {"message": "continued", "status": "ok"})

    async def on_update_weights_from_disk(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if not self._is_paused:
            raise BrokenContractError("an update without a pause may meet running requests")
        success, message = await self._scheduler.ask(lambda: self._scheduler.load(body))
        if success:
            self._model = body["model_path"]
        answer = {"success": success, "message": message, "num_paused_requests": 0}
        return self._answer(request, answer, 200 if success else 400)

    async def on_weights_checker(self, request: web.Request) -> web.Response:
        await self._body(request)
        weights = await self._scheduler.ask(lambda: list(self._scheduler.weights_of_ranks))
        ranks = [
            {"checksums": {}, "per_gpu_checksum": f"{rank}-{weight}", "parallelism_info": []}
            for rank, weight in enumerate(weights)
        ]
        return self._answer(request, {"success": True, "message": "Success.", "ranks": ranks})

    async def on_abort_request(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        rid = body["rid"]
        self._scheduler.send(lambda: self._scheduler.abort(rid, every=False))
        return web.Response()

    async def on_generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        stream = web.StreamResponse()
        await stream.prepare(request)
        if problem := self._problem(body):
            error = {"message": problem, "type": "invalid_request_error", "code": 400}
            await _send(stream, {"error": error})
            return stream
        async with self._paused:
            await self._paused.wait_for(lambda: not self._is_paused)
        running = Request(body)
        self._scheduler.send(lambda: self._scheduler.running.append(running))
        try:
            await self._stream(running, stream)
        finally:
            if self._fault("/generate") != "keeps lost requests":
                self._scheduler.send(lambda: self._scheduler.abort(running.rid, every=False))
        return stream

    def _problem(self, body: dict[str, Any]) -> str:
        length = len(body["input_ids"]) + body["sampling_params"]["max_new_tokens"]
        if length > self._length:
            return f"Requested token count {length} exceeds the model's maximum context length"
        return ""

    async def _stream(self, running: Request, stream: web.StreamResponse) -> None:
        while not running.finished or not running.outputs.empty():
            event = await running.outputs.get()
            check_record("GenerateResponse", event)
            _damage(event, self._fault("/generate"))
            await _send(stream, event)
        await stream.write(b"data: [DONE]\n\n")


def _damage(event: dict[str, Any], fault: str) -> None:
    meta = event["meta_info"]
    if fault == "no logprob":
        meta["output_token_logprobs"] = [[None, *e[1:]] for e in meta["output_token_logprobs"]]
    elif fault == "another token":
        event["output_ids"] = [VOCABULARY - 1 - token for token in event["output_ids"]]
    elif fault == "outside the vocabulary":
        event["output_ids"] = [10**6]
        meta["output_token_logprobs"] = [[-1.0, 10**6, None]]
    elif fault == "no versions":
        meta.pop("weight_versions", None)
    elif fault == "lost tokens":
        meta["completion_tokens"] += 2
    elif fault == "wrong shape":
        event["meta_info"] = [meta]
    elif fault == "too busy":
        busy = {"type": "abort", "message": "queue is full", "status_code": 503, "err_type": None}
        meta["finish_reason"] = busy


async def _send(stream: web.StreamResponse, event: dict[str, Any]) -> None:
    await stream.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def main(arguments: list[str]) -> None:
    """Serve until killed; exit code 2 for arguments that SGLang does not have."""
    try:
        server = SglangServer(arguments)
    except BrokenContractError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    # As uvicorn, it ends a route whose caller is gone.
    application, port = server.application(), server.port
    web.run_app(application, host="127.0.0.1", port=port, print=None, handler_cancellation=True)
