"""The process of a rollout's agent, which the user's program starts, asks, and ends."""

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rollcall.child_process import END_SECONDS, ChildProcess
from rollcall.errors import RollcallError
from rollcall_protocol.wire.external_rollout import (
    AGENT_MESSAGES,
    AgentReady,
    ApplyWeights,
    ReleaseWeights,
    SharedWeights,
    TakeWeights,
    WeightsApplied,
    WeightsTaken,
)

if TYPE_CHECKING:
    import torch

    from rollcall_runtime.sync.weights.snapshots import WeightSnapshot

log = logging.getLogger(__name__)

Apply = Callable[[int, Mapping[str, "torch.Tensor"]], object]
"""Gets a version and its tensors by name."""


class RolloutProcess(ChildProcess):
    """The agent receives weights; `apply`, if there is one, is called with them in a thread."""

    def __init__(self, variables: Mapping[str, str], *, apply: Apply | None) -> None:
        self._apply = apply
        self._due: queue.SimpleQueue[SharedWeights | None] = queue.SimpleQueue()
        super().__init__(
            "the rollout's process",
            "rollcall_runtime.external.rollout",
            variables,
            answers=AGENT_MESSAGES,
            arguments=["itself" if apply is None else "function"],
        )
        self._applying = threading.Thread(
            target=self._apply_all, name="rollcall apply", daemon=True
        )
        self._applying.start()

    def newest(self, *, at_least: int, timeout: float | None) -> "tuple[int, WeightSnapshot]":
        """The newest version, and its weights, mapped; they are held while a tensor is there."""
        taken = self.ask(
            lambda number: TakeWeights(number, at_least), WeightsTaken, timeout=timeout
        )
        return taken.weights.version, self._mapped(taken.weights)

    def close(self) -> None:
        """Leave the job; waits for `apply`, unless that calls it."""
        self._due.put(None)
        super().close()
        if threading.current_thread() is not self._applying:
            self._applying.join(END_SECONDS)

    def take(self, message: Any) -> None:
        """Weights to apply, or an answer."""
        if isinstance(message, AgentReady):
            self.is_ready(message)
        elif isinstance(message, ApplyWeights):
            self._due.put(message.weights)
        else:
            super().take(message)

    def not_awaited(self, message: Any) -> None:
        """Weights that came too late."""
        if isinstance(message, WeightsTaken):
            self.send(ReleaseWeights(message.weights.hold))

    # --- inside --------------------------------------------------------------------------------

    def _mapped(self, weights: SharedWeights) -> "WeightSnapshot":
        from rollcall_runtime.sync.errors import SyncError  # noqa: PLC0415 - these import torch
        from rollcall_runtime.sync.memory.shared_buffers import MappedFile  # noqa: PLC0415
        from rollcall_runtime.sync.weights.snapshots import WeightSnapshot  # noqa: PLC0415

        release = partial(self.send, ReleaseWeights(weights.hold))
        try:
            descriptor = os.open(weights.path, os.O_RDONLY)
            try:
                size = weights.manifest.total_bytes
                buffer = MappedFile(descriptor, size, private=True, unmapped=release)
            finally:
                os.close(descriptor)
        except (OSError, ValueError, SyncError) as error:
            release()
            raise RollcallError(
                f"Rollout: the weights of version {weights.version} cannot be mapped: {error}; run "
                "the program as one user, with /proc and enough memory"
            ) from error
        return WeightSnapshot(weights.manifest, buffer.hold())

    def _apply_all(self) -> None:
        while (weights := self._due.get()) is not None:
            error = self._apply_one(weights)
            self.send(WeightsApplied(weights.hold, error))

    def _apply_one(self, weights: SharedWeights) -> str:
        """What went wrong; the tensors are gone when this returns, unless `apply` kept some."""
        assert self._apply is not None  # noqa: S101 - the agent sends no weights without
        try:
            self._apply(weights.version, dict(self._mapped(weights).tensors()))
        except BaseException as error:  # also SystemExit: it is no end of this thread
            log.exception("apply failed with version %d", weights.version)
            return f"{type(error).__name__}: {error}"
        return ""
