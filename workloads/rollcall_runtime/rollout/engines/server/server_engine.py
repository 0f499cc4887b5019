"""What engines have in common that serve through a server of their own: its model and its state."""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from rollcall_runtime.models.end_tokens import end_tokens
from rollcall_runtime.rollout.engines.server.served_model import open_served
from rollcall_runtime.rollout.inference_engine import (
    FIELD,
    InferenceEngine,
    TokenLimits,
    check_shapes,
)
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.rollout.engines.server.process import ServerProcess
    from rollcall_runtime.rollout.inference_engine import PauseMode

METRICS_SECONDS = 5.0
CALL_SECONDS = 30.0  # for a call that waits for no more than a decode step


class TokenSettings(Protocol):
    """Of a server: tokens of a response, and of a prompt with its response (0: the model's)."""

    @property
    def max_tokens(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...


class ServerEngine(InferenceEngine):
    """Serves a model in Hugging Face's format. A derived engine makes `_server`, whose temporary
    files are in `_folder`, and starts it.
    """

    NAME: ClassVar[str]
    """The engine's name, with which the server's own metrics begin, too."""
    _server: ServerProcess

    def __init__(self, model: str, settings: TokenSettings) -> None:
        source, self._directory = open_served(model, engine=self.NAME)
        self._source: ModelSource = source
        self._eos = end_tokens(source)
        positions = settings.max_model_len or source.positions
        if source.positions is not None and settings.max_model_len > source.positions:
            problem = f"{positions} is above the model's {source.positions} positions; lower it"
            raise SpecError(f"{FIELD}.config.maxModelLen", problem)
        self._limits = TokenLimits(settings.max_tokens, positions)
        self._shapes = self._weight_shapes()
        self._folder = Path(tempfile.mkdtemp(prefix=f"rollcall-{self.NAME}-"))
        self._started = False
        self._version: int | None = None
        self._prepared: int | None = None  # the version that waits to be served

    @property
    def limits(self) -> TokenLimits:
        return self._limits

    @property
    def version(self) -> int | None:
        return self._version

    @property
    def failure(self) -> str:
        return self._server.failure

    async def metrics(self) -> bytes:
        if not self._started:
            return b""
        return await self._server.client.metrics(self.NAME, seconds=METRICS_SECONDS)

    async def prepare(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        state = dict(weights)
        check_shapes(self._shapes, state)
        self._prepared = None
        await self._prepare(state, version=version)
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
        await self._serve_prepared(version, running=running, seconds=seconds)

    @abstractmethod
    async def _prepare(self, state: Mapping[str, Tensor], *, version: int) -> None:
        """See `prepare`; the weights have the right names and shapes."""

    @abstractmethod
    async def _serve_prepared(self, version: int, *, running: PauseMode, seconds: float) -> None:
        """See `update_weights`; `version` is what `_prepare` brought. Clears `_prepared`."""

    async def close(self) -> None:
        await self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """What an update brings, by name; SpecError if there can be none."""
        return dict(self._source.weights().shapes)
