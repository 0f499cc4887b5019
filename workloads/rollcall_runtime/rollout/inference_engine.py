"""The interface of inference engines to the rollout agent, and the registry that finds them.

All of it is called in the agent's event loop. A request is one response; many run at once, and each
streams its tokens and ends by itself. Weights change between two tokens, and each token carries the
number of the weight version that sampled it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.worker.engine_registry import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from torch import Tensor

    from rollcall_protocol.sampling_config import SamplingConfig
    from rollcall_runtime.sync.weights.shards import Shard

FIELD = "spec.rollouts[].engine"


class PauseMode(StrEnum):
    """What an update of the weights does to requests that are running."""

    ABORT = "Abort"  # ends them at once, unfinished
    KEEP = "Keep"  # holds them; after the update they go on with the new weights
    WAIT = "Wait"  # waits until they are finished


_NOTHING = Response()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One response to `prompt`, token ids; `begun` is continued if it has tokens.

    `seed` and the number of a token choose its random numbers, whatever else is sampled with it.
    Without `sampling.max_tokens` the engine's own bound holds, for all tokens of the response.
    """

    prompt: tuple[int, ...]
    sampling: SamplingConfig
    seed: int
    begun: Response = _NOTHING


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The next tokens of a response, natural logarithms of their probabilities, their versions.

    `finished`: the response ends with them. `all_versions`, in the last piece: the versions of all
    tokens of the request, if those of earlier pieces were not certain. ValueError if the three
    tuples differ in length.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finished: bool = False
    all_versions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            raise ValueError("tokens, logprobs and versions differ in length")

    def after(self, begun: Response) -> Response:
        """`begun`, with these tokens behind its own."""
        tokens = (*begun.tokens, *self.tokens)
        versions = (*begun.versions, *self.versions)
        if self.all_versions:
            versions = (*versions[: len(tokens) - len(self.all_versions)], *self.all_versions)
        logprobs = (*begun.logprobs, *self.logprobs)
        return Response(tokens, logprobs, versions, finished=self.finished)


class WeightMismatchError(ValueError):
    """Weights that do not fit the model: missing, unknown or of another shape."""


def check_shapes(own: Mapping[str, Sequence[int]], given: Mapping[str, Tensor]) -> None:
    """WeightMismatchError unless `given` are a model's tensors, whose shapes are `own`."""
    problems = [f"missing {name}" for name in own.keys() - given.keys()]
    problems += [f"unknown {name}" for name in given.keys() - own.keys()]
    problems += [
        f"{name} has shape {tuple(given[name].shape)}, not {tuple(shape)}"
        for name, shape in own.items()
        if name in given and tuple(given[name].shape) != tuple(shape)
    ]
    if problems:
        raise WeightMismatchError("; ".join(sorted(problems)))


class InferenceEngine(ABC):
    """One model that generates. It owns what it allocates and starts; `close` frees it."""

    @abstractmethod
    def __init__(self, *, model: str, config: Mapping[str, Any]) -> None:
        """Open the model at the path that the job names. `config`: the engine's own settings.

        SpecError names the field that cannot work.
        """

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
        `aclose` of the stream ends the request at once.
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
        "vllm": "rollcall_runtime.rollout.engines.vllm.engine:VllmEngine",
    },
)
