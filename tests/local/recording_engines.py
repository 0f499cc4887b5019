"""Engines that are slow and record what they do; worker processes find them by entry points."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollcall_protocol.pod_contract import POD_NAME
from rollcall_protocol.wire.messages import Sample
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.engines.batch_decoder import BatchDecoder
from rollcall_runtime.rollout.engines.decode_lock import Ticket
from rollcall_runtime.rollout.engines.tiny_engine import TinyEngine
from rollcall_runtime.rollout.inference_engine import PartialOutputCallback
from rollcall_runtime.train import trainer_rank
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.policy_batch import policy_batch
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import EngineSetup

ROLLOUT, TRAINER = "slow", "recording"
_ENTRY_POINTS = f"""
[rollcall.inference_engines]
{ROLLOUT} = tests.local.recording_engines:SlowEngine
[rollcall.train_engines]
{TRAINER} = tests.local.recording_engines:RecordingEngine
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
    """What a rollout knew of a prompt's group: reported to the coordinator, or received from it."""

    pod: str
    kind: str  # reported, given
    prompt: tuple[int, ...]
    group: tuple[Response, ...]


class SlowEngine(TinyEngine):
    """`stepDelay` seconds more for each token; all weights, reports and partials go to `folder`,
    if there is one.
    """

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        own = dict(config or {})
        folder = own.pop("folder", None)
        self._delay, self._folder = float(own.pop("stepDelay")), Path(folder) if folder else None
        self._pod = os.environ[POD_NAME]
        super().__init__(model=model, config=own)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        seed: int,
        timeout: float,
        partials: Sequence[Sequence[Response]] | None = None,
        on_partial: PartialOutputCallback | None = None,
    ) -> list[list[Response]]:
        assert on_partial is not None
        followed = on_partial

        def report(groups: list[list[Response]]) -> bool:
            self._write("reported", prompts, groups)
            return followed.callback(groups)

        if partials is not None:
            self._write("given", prompts, partials)
        return super().generate(
            prompts,
            group_size=group_size,
            seed=seed,
            timeout=timeout,
            partials=partials,
            on_partial=PartialOutputCallback(on_partial.interval, report),
        )

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        state = {name: tensor.clone() for name, tensor in weights}
        if self._folder is not None:
            scratch = self._folder / f".{self._pod}.pt"
            torch.save(state, scratch)
            scratch.rename(self._folder / f"weights-{version}-{self._pod}.pt")
        super().load_weights(state.items(), version=version)

    def _step(self, rows: BatchDecoder, ticket: Ticket, generator: torch.Generator) -> bool:
        time.sleep(self._delay)
        return super()._step(rows, ticket, generator)

    def _write(
        self, kind: str, prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Response]]
    ) -> None:
        if self._folder is None:
            return
        with (self._folder / f"{self._pod}.jsonl").open("a") as file:
            for prompt, group in zip(prompts, groups, strict=True):
                rows = [[g.tokens, g.logprobs, g.versions, g.finished] for g in group]
                file.write(json.dumps([self._pod, kind, prompt, rows]) + "\n")


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
            pod, kind, prompt, rows = json.loads(line)
            group = tuple(Response(tuple(t), tuple(p), tuple(v), f) for t, p, v, f in rows)
            found.append(Moment(pod, kind, tuple(prompt), group))
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
