"""The interface of inference engines to the rollout agent, and the registry that finds them.

All of it is called in the agent's event loop. A request is one response; many run at once, and each
streams its tokens and ends by itself. Weights change between two tokens, and each token carries the
number of the weight version that sampled it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from rollcall_protocol.wire.generation import GenerationRequest, NewTokens
from rollcall_runtime.worker.engine_registry import Registry
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from torch import Tensor

    from rollcall_protocol.adapter_config import AdapterConfig
    from rollcall_runtime.sync.weights.shards import Shard
    from rollcall_runtime.sync.weights.snapshots import WeightSnapshot

__all__ = [
    "FIELD",
    "GenerationRequest",
    "InferenceEngine",
    "NewTokens",
    "PauseMode",
    "TokenLimits",
    "WeightMismatchError",
    "check_shapes",
    "inference_engines",
]

FIELD = "spec.rollouts[].engine"
EXPORT = "spec.trainer.engine.config.loraExport"


class PauseMode(StrEnum):
    """What an update of the weights does to requests that are running."""

    ABORT = "Abort"  # ends them at once, unfinished
    KEEP = "Keep"  # holds them; after the update they go on with the new weights
    WAIT = "Wait"  # waits until they are finished


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Most tokens of a response whose sampling settings name no bound, and of prompt and response
    together (None: any number).
    """

    response: int
    context: int | None

    def room(self, prompt: int, *, asked: int = 0) -> int:
        """Most tokens of a response behind `prompt` tokens, of which `asked` are wanted at most.

        0: as many as `response`. Below 1 if there is no room for any.
        """
        most = asked or self.response
        return most if self.context is None else min(most, self.context - prompt)


class WeightMismatchError(ValueError):
    """Weights that do not fit the model: missing, unknown, of another shape, or no floats."""


def check_shapes(own: Mapping[str, Sequence[int]], given: Mapping[str, Tensor]) -> None:
    """WeightMismatchError unless `given` are a model's tensors, whose shapes are `own`.

    Of any floating-point dtype: engines cast to their own, but integers would be cast without a
    word, too.
    """
    problems = [f"missing {name}" for name in own.keys() - given.keys()]
    problems += [f"unknown {name}" for name in given.keys() - own.keys()]
    problems += [
        f"{name} has shape {tuple(given[name].shape)}, not {tuple(shape)}"
        for name, shape in own.items()
        if name in given and tuple(given[name].shape) != tuple(shape)
    ]
    problems += [
        f"{name} has the dtype {str(tensor.dtype).removeprefix('torch.')}, which is none of floats"
        for name, tensor in given.items()
        if not tensor.is_floating_point()
    ]
    if problems:
        raise WeightMismatchError("; ".join(sorted(problems)))


class InferenceEngine(ABC):
    """One model that generates. It owns what it allocates and starts; `close` frees it."""

    reads_shared_memory: ClassVar[bool] = False  # whether another process of it reads weights there
    generates: ClassVar[bool] = True
    """Whether it samples responses; one that does not gets neither prompts nor requests."""
    constrains: ClassVar[bool] = False
    """Whether it takes a request with `json_schema`."""
    gives_top: ClassVar[bool] = False
    """Whether it takes a request with `top_logprobs`."""
    staged_copies: int = 0
    """How many copies of the weights the agent keeps in the memory of `device` beside the model;
    set before `start`."""

    @abstractmethod
    def __init__(self, *, model: str, config: Mapping[str, Any]) -> None:
        """Open the model at the path that the job names. `config`: the engine's own settings.

        SpecError names the field that cannot work.
        """

    @classmethod
    def for_adapter(
        cls, adapter: AdapterConfig, *, model: str, config: Mapping[str, Any]
    ) -> InferenceEngine:
        """As the constructor, where updates bring the tensors of a low-rank adapter alone.

        They have PEFT's names; the model's own weights are those of its directory. SpecError, as
        here, of an engine that cannot.
        """
        del adapter, model, config
        problem = f"{cls.__name__} does not serve adapters; name vllm, or set {EXPORT} to merged"
        raise SpecError(f"{FIELD}.name", problem)

    async def start(self) -> None:  # noqa: B027 - most engines have nothing to start
        """Start what the engine needs beside this process; SpecError, or RuntimeError."""

    @property
    def device(self) -> str:
        """The torch device type of the memory that the model is in."""
        return "cpu"

    @property
    @abstractmethod
    def version(self) -> int | None:
        """The version number of the loaded weights; None before the first `update_weights`."""

    @property
    def limits(self) -> TokenLimits | None:
        """What `generate` takes; None if that is not known before."""
        return None

    @property
    def shard(self) -> Shard | None:
        """The part of each tensor that this engine loads, which never changes; None for all.

        A rank of a tensor-parallel engine loads a part: `update_weights` gets the rows that the
        shard names and no others, and where the sync engine allows it no others are received.
        """
        return None

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        """The tokens of one response, as they come; the last piece is `finished`.

        Requests of one turn of the event loop are begun together. A stream that ends without that
        was cut short by an update that aborts: the request may be made again with what has come.
        `aclose` of the stream ends the request at once. Each piece has `top` if that is asked for.
        ValueError for a prompt that the model cannot take (an unknown token, too long);
        RuntimeError before the first weights, after `close`, and where the model fails.
        """

    async def prepare(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:  # noqa: B027
        """Bring the weights of a later `update_weights` near, while requests are served.

        The tensors may change once this returns. WeightMismatchError if they do not fit the model.
        """

    @abstractmethod
    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        """Use these weights from the next token on; the tensors are copied. One call at a time.

        All or nothing: after any error the former weights and version are served as before, or
        `failure` says why they are not. WeightMismatchError if the weights do not fit the model;
        TimeoutError if requests that `running` waits for do not end within `seconds`.
        """

    async def update_from_staged(
        self,
        staged: WeightSnapshot,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        """As `update_weights`. `weights` lie in the buffer of `staged`, which an engine may share
        to keep them there.
        """
        del staged
        await self.update_weights(weights, version=version, running=running, seconds=seconds)

    async def metrics(self) -> bytes:
        """The engine's own metrics in Prometheus' text format, without the process's; maybe none.

        OSError or RuntimeError if it cannot say them now.
        """
        return b""

    @property
    def failure(self) -> str:
        """Why the engine serves nothing any more and must be replaced, or an empty string."""
        return ""

    @abstractmethod
    async def close(self) -> None:
        """End running requests, refuse new ones, free the model."""


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
