"""Engines that are slow and record what they do; worker processes find them by entry points."""

import json
import os
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollcall_protocol.pod_contract import POD_NAME
from rollcall_protocol.wire.messages import Sample
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.engines.batch_decoder import BatchDecoder
from rollcall_runtime.rollout.engines.tiny_engine import TinyEngine
from rollcall_runtime.rollout.inference_engine import GenerationRequest, NewTokens, PauseMode
from rollcall_runtime.train import trainer_rank
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.policy_batch import policy_batch
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import EngineSetup

ROLLOUT, TRAINER = "slow", "recording"
_ENTRY_POINTS = f"""
[rollcall.inference_engines]
{ROLLOUT} = tests.process.recording_engines:SlowEngine
[rollcall.train_engines]
{TRAINER} = tests.process.recording_engines:RecordingEngine
"""


def install(folder: Path) -> Path:
    """A distribution with these engines; its folder goes onto PYTHONPATH."""
    metadata = folder / "recording_engines-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: recording-engines\n")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    return folder


@dataclass(frozen=True, slots=True)
class Moment:
    """What a rollout had of a response: sampled so far, or given to begin with."""

    pod: str
    kind: str  # sampled, given
    prompt: tuple[int, ...]
    response: Response


class SlowEngine(TinyEngine):
    """`stepDelay` seconds more for each token; all weights, and responses as they grow, go to
    `folder`, if there is one.
    """

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        own = dict(config or {})
        folder = own.pop("folder", None)
        self._delay, self._folder = float(own.pop("stepDelay")), Path(folder) if folder else None
        self._pod = os.environ[POD_NAME]
        super().__init__(model=model, config=own)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        response = request.begun
        if response.tokens:
            self._write("given", request, response)
        async with aclosing(super().generate(request)) as pieces:
            async for piece in pieces:
                response = piece.after(response)
                self._write("sampled", request, response)
                yield piece

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        state = {name: tensor.clone() for name, tensor in weights}
        if self._folder is not None:
            scratch = self._folder / f".{self._pod}.pt"
            torch.save(state, scratch)
            scratch.rename(self._folder / f"weights-{version}-{self._pod}.pt")
        await super().update_weights(
            state.items(), version=version, running=running, seconds=seconds
        )

    def _step(self, decoder: BatchDecoder, version: int) -> None:
        time.sleep(self._delay)
        super()._step(decoder, version)

    def _write(self, kind: str, request: GenerationRequest, response: Response) -> None:
        if self._folder is None:
            return
        row = [response.tokens, response.logprobs, response.versions, response.finished]
        with (self._folder / f"{self._pod}.jsonl").open("a") as file:
            file.write(json.dumps([self._pod, kind, request.prompt, *row]) + "\n")


class RecordingEngine(Fsdp2Engine):
    """Samples that are trained on go to `folder`."""

    def __init__(self, setup: EngineSetup) -> None:
        own = dict(setup.own_settings)
        _record_samples(Path(own.pop("folder")))
        super().__init__(replace(setup, own_settings=own))


def _record_samples(folder: Path) -> None:
    make_batch = policy_batch

    def recording(
        prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Sample]], *, version: int
    ) -> TrainBatch:
        with (folder / f"{os.getpid()}.batches").open("a") as file:
            for prompt, group in zip(prompts, groups, strict=True):
                for sample in group:
                    row = (prompt, sample.tokens, sample.logprobs, sample.versions)
                    file.write(json.dumps(row) + "\n")
        return make_batch(prompts, groups, version=version)

    setattr(trainer_rank, "policy_batch", recording)  # noqa: B010 - not an exported name


def moments(folder: Path) -> list[Moment]:
    """What rollouts wrote down, each pod's in its order; a torn last line is left out."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().split("\n")[:-1]:
            pod, kind, prompt, tokens, logprobs, versions, finished = json.loads(line)
            response = Response(tuple(tokens), tuple(logprobs), tuple(versions), finished)
            found.append(Moment(pod, kind, tuple(prompt), response))
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """A sample that was trained on."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


def trained_rows(folder: Path) -> list[Row]:
    """All samples that the trainer used; a torn last line is left out."""
    return [
        Row(*map(tuple, json.loads(line)))
        for file in sorted(folder.glob("*.batches"))
        for line in file.read_text().split("\n")[:-1]
    ]


def weights(folder: Path, version: int) -> dict[str, Tensor]:
    """A version as some rollout served it."""
    state: dict[str, Tensor] = torch.load(next(folder.glob(f"weights-{version}-*.pt")))
    return state
