"""Requests and updates of weights, through a vLLM server that this engine starts."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rollcall_protocol.vllm_settings import VllmSettings
from rollcall_runtime.models.hugging_face import HuggingFaceSource
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.engines.vllm.client import VllmError
from rollcall_runtime.rollout.engines.vllm.server import VllmServer
from rollcall_runtime.rollout.inference_engine import (
    FIELD,
    GenerationRequest,
    InferenceEngine,
    NewTokens,
    PauseMode,
    check_shapes,
)
from rollcall_runtime.vllm_plugin import BACKEND, staged_file
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from torch import Tensor

    from rollcall_runtime.models.model_source import ModelSource

log = logging.getLogger(__name__)

PREPARE_SECONDS = 600.0  # to load weights beside serving
METRICS_SECONDS = 5.0
CALL_SECONDS = 30.0  # for a call that waits for no more than a decode step
_LOOK_SECONDS = 0.01  # between two looks at whether all ranks have prepared
_ANOTHER_SEED = 7919  # apart from the seed of a request that goes on where another ended
# vLLM's sampler has a function compiled, which needs a C++ compiler and takes half a minute.
_UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1"}
# On CPUs vLLM gives even a single rank a process of its own, which imports vLLM again, in order to
# set its threads; these are set here.
_IN_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_MODES = {PauseMode.ABORT: "abort", PauseMode.KEEP: "keep", PauseMode.WAIT: "wait"}
_FINISHED = frozenset({"stop", "length"})
_OWN = re.compile(rb"(# (HELP|TYPE) )?vllm:")  # its Python's and its HTTP server's are left out


class VllmEngine(InferenceEngine):
    """Serves a model in Hugging Face's format. The weights come with the first update alone.

    Keys and values of the prefix cache are found by those requests alone that begin after the same
    update (`cache_salt`), so that the cache need not be emptied for one.
    """

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        self._settings = read_settings(VllmSettings, config or {}, field=f"{FIELD}.config")
        source = open_model(model)
        if not isinstance(source, HuggingFaceSource) or source.directory is None:
            problem = f"vllm does not serve the model {model!r}; tiny does"
            raise SpecError(f"{FIELD}.name", problem)
        self._source: ModelSource = source
        self._shapes = dict(source.weights().shapes)
        self._folder = Path(tempfile.mkdtemp(prefix="rollcall-vllm-"))
        self._server = VllmServer(
            self._arguments(source.directory),
            socket=self._folder / "vllm.sock",
            variables=self._variables(),
            silent_seconds=self._settings.silent_seconds,
        )
        self._clear_cache = "true" if self._settings.recompute_cache else "false"
        self._started = False
        self._version: int | None = None
        self._updates = 0  # that were made: version numbers may repeat
        self._prepared: int | None = None
        self._updating = False  # whether vLLM's workers have begun an update, and not finished it
        self._staged = -1  # the descriptor of the file that the weights are staged in

    @property
    def version(self) -> int | None:
        return self._version

    @property
    def failure(self) -> str:
        return self._server.failure

    async def start(self) -> None:
        await self._server.start(seconds=self._settings.start_seconds)
        self._started = True
        began = time.monotonic()
        async with aclosing(self._server.client.stream(_body([0], {"max_tokens": 1}))) as pieces:
            async for _ in pieces:  # with no weights yet: what it says does not matter
                pass
        log.info("vLLM is warm after %.1f s", time.monotonic() - began)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        if self.failure:
            raise RuntimeError(self.failure)
        if self._version is None:
            raise RuntimeError("no weights have been loaded yet")
        sampling, left = self._sampling(request)
        if left < 1:
            yield NewTokens((), (), (), finished=True)
            return
        prompt = [*request.prompt, *request.begun.tokens]
        body = _body(prompt, sampling, salt=str(self._updates))
        versions: list[int] = []
        async with aclosing(self._server.client.stream(body)) as choices:
            async for choice in choices:
                piece = _piece(choice, self._version, versions)
                if piece.tokens or piece.finished:
                    yield piece
                if piece.finished or choice.get("finish_reason") == "abort":
                    return
        raise VllmError("the stream of a request ended before its response")

    async def prepare(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        state = dict(weights)
        check_shapes(self._shapes, state)
        self._prepared = None
        staged = os.memfd_create(f"rollcall-{version}")
        former, self._staged = self._staged, staged
        if former >= 0:
            os.close(former)
        await asyncio.to_thread(staged_file.write, staged, state.items(), version=version)
        reports = self._folder / "prepared"
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir()
        path = f"/proc/{os.getpid()}/fd/{staged}"
        if not self._updating:
            await self._call("/start_weight_update")
            self._updating = True
        await self._call("/update_weights", action="prepare", path=path, reports=str(reports))
        await self._all_prepared(reports)
        await self._call("/update_weights", action="wait", seconds=CALL_SECONDS)
        self._prepared = version

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        if self.failure:
            raise RuntimeError(self.failure)
        if self._prepared != version:
            await self.prepare(weights, version=version)
        try:
            await self._server.client.post(
                "/pause",
                parameters={"mode": _MODES[running], "clear_cache": self._clear_cache},
                seconds=seconds,
            )
        except TimeoutError:
            await self._resume()
            problem = f"vLLM did not pause within {seconds:g} s"
            raise TimeoutError(problem) from None
        except VllmError:
            await self._resume()
            raise
        try:
            await self._post("/finish_weight_update", {"weight_version": str(version)})
        except (VllmError, TimeoutError) as error:
            # Some ranks may serve the new weights: nothing is generated until it is replaced.
            self._server.fail(f"vLLM could not finish the update to version {version}: {error}")
            raise RuntimeError(self.failure) from error
        self._prepared, self._updating = None, False
        self._updates += 1
        self._version = version  # no token is sampled during the pause
        await self._resume()

    async def metrics(self) -> bytes:
        if not self._started:
            return b""
        exposed = await self._server.client.get("/metrics", seconds=METRICS_SECONDS)
        return b"".join(line for line in exposed.splitlines(keepends=True) if _OWN.match(line))

    async def close(self) -> None:
        await self._server.close()
        if self._staged >= 0:
            os.close(self._staged)
            self._staged = -1
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- inside --------------------------------------------------------------------------------

    def _arguments(self, directory: Path) -> list[str]:
        settings = self._settings
        arguments = [
            f"--model={directory}",
            f'--weight-transfer-config={{"backend": "{BACKEND}"}}',
            "--load-format=dummy",
            "--logprobs-mode=processed_logprobs",
            "--disable-uvicorn-access-log",
            "--enable-scale-out",  # requests in tokens
            f"--dtype={settings.dtype}",
            f"--tensor-parallel-size={settings.tensor_parallel_size}",
        ]
        if not self._has_tokenizer(directory):
            arguments.append("--skip-tokenizer-init")
        length = settings.max_model_len or self._source.positions
        if length is not None:
            arguments.append(f"--max-model-len={length}")
        if not torch.accelerator.is_available():
            arguments.append("--enforce-eager")
        return [*arguments, *settings.command_line()]

    def _has_tokenizer(self, directory: Path) -> bool:
        return any(directory.glob("tokenizer*")) or (directory / "vocab.json").exists()

    def _variables(self) -> dict[str, str]:
        variables = {
            # Pause, resume and updates; the socket is the agent's own.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self._settings.cache_gibibytes),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self._settings.threads),
            "HF_HUB_OFFLINE": "1",
        }
        if not torch.accelerator.is_available():
            variables |= _UNCOMPILED
            if self._settings.tensor_parallel_size == 1:
                variables |= _IN_ONE_PROCESS
        home = os.environ.get("HOME", "")
        if not (home and os.access(home, os.W_OK)):
            # vLLM keeps caches there; the root file system of a pod may be read-only.
            variables["HOME"] = str(self._folder)
        return variables

    def _sampling(self, request: GenerationRequest) -> tuple[dict[str, Any], int]:
        """The sampling parameters for vLLM, and the tokens that the response may still have."""
        own, begun = request.sampling, len(request.begun.tokens)
        left = (own.max_tokens or self._settings.max_tokens) - begun
        stops = sorted(self._source.eos | set(own.stop_token_ids))
        sampling: dict[str, Any] = {
            "max_tokens": left,
            "temperature": own.temperature,
            "top_p": own.top_p,
            "top_k": own.top_k,
            "stop_token_ids": stops,
            "seed": (request.seed + _ANOTHER_SEED * begun) % 2**63,
            "logprobs": 0,
            "detokenize": bool(own.stop),
        }
        if own.stop:
            sampling["stop"] = list(own.stop)
        return sampling, left

    async def _all_prepared(self, reports: Path) -> None:
        """Until each rank has reported; RuntimeError with what one of them says failed."""
        deadline = time.monotonic() + PREPARE_SECONDS
        ranks = [reports / str(rank) for rank in range(self._settings.tensor_parallel_size)]
        while not all(report.exists() for report in ranks):
            if self.failure:
                raise RuntimeError(self.failure)
            if time.monotonic() > deadline:
                raise TimeoutError(f"vLLM did not prepare weights in {PREPARE_SECONDS:g} s")
            await asyncio.sleep(_LOOK_SECONDS)
        problems = {report.name: report.read_text() for report in ranks}
        said = [f"rank {rank}: {problem}" for rank, problem in problems.items() if problem]
        if said:
            raise RuntimeError("; ".join(said))

    async def _call(self, route: str, **update_info: Any) -> None:
        """Have all of vLLM's workers do something.

        If one fails, vLLM takes what the others answered for the answer to its next call, so an
        error takes it out of service.
        """
        try:
            await self._post(route, {"update_info": update_info} if update_info else None)
        except (VllmError, TimeoutError) as error:
            self._server.fail(f"vLLM's workers failed at a call: {error or 'no answer'}")
            raise RuntimeError(self.failure) from error

    async def _post(self, route: str, body: dict[str, Any] | None = None) -> None:
        await self._server.client.post(route, body, seconds=CALL_SECONDS + 10.0)

    async def _resume(self) -> None:
        try:
            await self._post("/resume")
        except (VllmError, TimeoutError) as error:
            self._server.fail(f"vLLM could not resume after a pause: {error}")
            raise RuntimeError(self.failure) from error


def _body(tokens: list[int], sampling: Mapping[str, Any], *, salt: str = "") -> dict[str, Any]:
    body = {"token_ids": tokens, "sampling_params": dict(sampling), "stream": True}
    return body | ({"cache_salt": salt} if salt else {})


def _piece(choice: Mapping[str, Any], version: int, versions: list[int]) -> NewTokens:
    """A piece of a stream. `versions` are those of all tokens so far, and get these.

    vLLM says at the end which version sampled which tokens; until then a token is of the version
    that serves when it comes.
    """
    tokens = tuple(choice["token_ids"] or ())
    entries = (choice.get("logprobs") or {}).get("content") or []
    logprobs = tuple(min(float(entry["logprob"]), 0.0) for entry in entries)
    if any(logprob <= -9999.0 for logprob in logprobs):  # vLLM's word for none, or not a number
        raise VllmError("vLLM gave a token no log-probability: are the weights finite?")
    new = (version,) * len(tokens)
    versions += new
    spans = choice.get("weight_versions") or []
    certain = [int(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
    finished = choice.get("finish_reason") in _FINISHED
    corrected = tuple(certain) if certain and certain != versions else ()
    if len(corrected) not in {0, len(versions)}:
        raise VllmError(f"vLLM says the versions of {len(corrected)} of {len(versions)} tokens")
    return NewTokens(tokens, logprobs, new, finished=finished, all_versions=corrected)
