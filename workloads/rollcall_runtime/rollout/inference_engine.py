"""What every inference engine offers to the rollout agent.

Threads: `generate` runs in worker threads, several at once if the caller likes; `pause`, `resume`
and `load_weights` are called from others. A swap of weights falls between two decode steps, and
each token carries the number of the weight version that drew it.
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

    from rollcall_runtime.sync.weights.shards import Shard

FIELD = "spec.rollouts[].engine"


class PauseMode(StrEnum):
    """What happens to generations that a pause finds under way."""

    ABORT = "Abort"  # they end at once, unfinished
    KEEP = "Keep"  # they stand still and go on after the resume, with the weights then loaded
    WAIT = "Wait"  # they end in their own time; the pause begins after them


@dataclass(frozen=True, slots=True)
class Generation:
    """A response so far. `logprobs` are natural logarithms under the policy that drew the token.

    The three tuples are of one length. Not `finished`: cut short by a pause or a deadline; handed
    back to `generate` it is continued.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finished: bool = False

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            raise ValueError("tokens, logprobs and versions differ in length")


@dataclass(frozen=True, slots=True)
class Watch:
    """Somebody follows a generation: `tell` wants all that there is, about every `every` seconds.

    What it is told has the shape of the result, `group_size` generations for each prompt, and each
    token of it is in the result too. `tell` never blocks and may be called from any thread, one
    call at a time, none after the result is returned. False means that nobody wants the result any
    more: the engine ends the generation soon, as after its timeout.
    """

    every: float
    tell: Callable[[list[list[Generation]]], bool]


class WeightMismatchError(ValueError):
    """Weights that do not fit the model: missing, unknown or of another shape."""


class InferenceEngine(ABC):
    """One model that serves. It owns what it allocates; `close` frees it."""

    @abstractmethod
    def __init__(self, *, model: str, config: Mapping[str, Any]) -> None:
        """Open the model at the path that the job names. `config`: the engine's own settings.

        SpecError for what cannot work.
        """

    @property
    def device(self) -> str:
        """The torch device type of the memory that the model is in."""
        return "cpu"

    @property
    @abstractmethod
    def version(self) -> int | None:
        """Number of the weights that serve now; None before the first `load_weights`."""

    @property
    def shard(self) -> Shard | None:
        """What of each tensor this engine serves, always the same; None for everything.

        A rank of a tensor-parallel engine serves a part: `load_weights` gets the rows that the
        shard names and no others, and where the sync engine allows it no others are received.
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
        partials: Sequence[Sequence[Generation]] | None = None,
        watch: Watch | None = None,
    ) -> list[list[Generation]]:
        """Draw `group_size` responses to each prompt, all in one batch.

        The same prompts, seed and weights draw the same tokens. `partials` (one list a prompt, of
        `group_size`) are continued instead of starting afresh. After `timeout` seconds, or on a
        pause that aborts, what there is comes back unfinished. `watch` is told meanwhile: between
        decode steps, or, by an engine that streams its outputs, as they come; an engine that is
        told nothing by its library for longer than `watch.every` stays silent too, so that silence
        means that nothing moves. ValueError for what the model cannot
        take (an unknown token, too long); RuntimeError before the first weights and after `close`.
        """

    @abstractmethod
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Serve these weights from the next decode step on. The tensors are copied.

        All or nothing: WeightMismatchError leaves the served weights and version as they were.
        """

    @abstractmethod
    def pause(self, mode: PauseMode, *, timeout: float) -> None:
        """No decode step runs from the return of this call until `resume`.

        TimeoutError, and no pause, if generations under way did not end within `timeout` seconds.
        """

    @abstractmethod
    def resume(self) -> None:
        """End the pause; harmless without one."""

    @abstractmethod
    def close(self) -> None:
        """End generations under way, refuse new ones, free the model."""


inference_engines: Registry[InferenceEngine] = Registry(
    kind="inference engine",
    group="rollcall.inference_engines",
    field=f"{FIELD}.name",
    base=InferenceEngine,  # type: ignore[type-abstract]
    builtins={"tiny": "rollcall_runtime.rollout.engines.tiny_engine:TinyEngine"},
)
