"""The interface of inference engines to the rollout agent, and the registry that finds them.

Threads: `generate` runs in worker threads, possibly several at once; `pause`, `resume` and
`load_weights` are called from other threads. Weights change between two decode steps, and each
token carries the number of the weight version that sampled it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rollcall_runtime.worker.engine_registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from rollcall_protocol.wire.partial_responses import Response
    from rollcall_runtime.sync.weights.shards import Shard

FIELD = "spec.rollouts[].engine"


class PauseMode(StrEnum):
    """What a pause does to generations that are running."""

    ABORT = "Abort"  # ends them at once, unfinished
    KEEP = "Keep"  # holds them; after the resume they go on with the weights loaded by then
    WAIT = "Wait"  # waits until they are finished, then pauses


@dataclass(frozen=True, slots=True)
class PartialOutputCallback:
    """Receives the responses so far, about every `interval` seconds while a generation runs.

    `callback` gets a value of the result's shape, `group_size` responses for each prompt; each of
    its tokens is in the result too. It never blocks and may be called from any thread, one call at
    a time, none after the result is returned. If it returns False the result is not wanted any
    more: the engine ends the generation soon, as after its timeout.
    """

    interval: float
    callback: Callable[[list[list[Response]]], bool]


class WeightMismatchError(ValueError):
    """Weights that do not fit the model: missing, unknown or of another shape."""


class InferenceEngine(ABC):
    """One model that generates. It owns what it allocates; `close` frees it."""

    @abstractmethod
    def __init__(self, *, model: str, config: Mapping[str, Any]) -> None:
        """Open the model at the path that the job names. `config`: the engine's own settings.

        SpecError names the field that cannot work.
        """

    @property
    def device(self) -> str:
        """The torch device type of the memory that the model is in."""
        return "cpu"

    @property
    @abstractmethod
    def version(self) -> int | None:
        """The version number of the loaded weights; None before the first `load_weights`."""

    @property
    def shard(self) -> Shard | None:
        """The part of each tensor that this engine loads, which never changes; None for all.

        A rank of a tensor-parallel engine loads a part: `load_weights` gets the rows that the shard
        names and no others, and where the sync engine allows it no others are received.
        """
        return None

    @abstractmethod
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
        """Sample `group_size` responses to each prompt, all in one batch.

        The same prompts, seed and weights give the same tokens. `partials` (one list a prompt, of
        `group_size`) are continued. After `timeout` seconds, or on a pause that aborts, the
        responses so far are returned unfinished. `on_partial` is called between decode steps, or,
        by an engine that streams its outputs, as they come. An engine whose library reports nothing
        for longer than `on_partial.interval` does not call it either, so that a missing call means
        that no token was sampled. ValueError for prompts that the model cannot take (an unknown
        token, too long); RuntimeError before the first weights and after `close`.
        """

    @abstractmethod
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Use these weights from the next decode step on. The tensors are copied.

        All or nothing: WeightMismatchError leaves weights and version as they were.
        """

    @abstractmethod
    def pause(self, mode: PauseMode, *, timeout: float) -> None:
        """No decode step runs from the return of this call until `resume`.

        TimeoutError, and no pause, if running generations do not end within `timeout` seconds.
        """

    @abstractmethod
    def resume(self) -> None:
        """End the pause; harmless without one."""

    @abstractmethod
    def close(self) -> None:
        """End running generations, refuse new ones, free the model."""


inference_engines: Registry[InferenceEngine] = Registry(
    kind="inference engine",
    group="rollcall.inference_engines",
    field=f"{FIELD}.name",
    base=InferenceEngine,  # type: ignore[type-abstract]
    builtins={
        "tiny": "rollcall_runtime.rollout.engines.tiny_engine:TinyEngine",
        "transformers": "rollcall_runtime.rollout.engines.transformers_engine:TransformersEngine",
    },
)
