"""Ray's actors around verl's own workers, which send and take a model of a given size.

As tests/checkpoint_engine/test_utils.py of verl 0.9.1 has them, without models and GPUs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray
import torch
from verl.checkpoint_engine import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.rollout import RolloutReplica

from tests.plugins.trainers_of_ones_own.verl.actors import Server, worker_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

TENSOR_BYTES = 16 << 20
BUCKET_MEGABYTES = 64
_OURS = {"backend": "rollcall", "custom_backend_module": "rollcall.verl"}
_VERLS = {"backend": "nixl", "engine_kwargs": {"nixl": {"device": "cpu"}}}


def engine_config(backend: str) -> CheckpointEngineConfig:
    """What a user writes into verl's configuration."""
    settings = _OURS if backend == "rollcall" else _VERLS
    return CheckpointEngineConfig(update_weights_bucket_megabytes=BUCKET_MEGABYTES, **settings)


def weights(nbytes: int, step: int) -> dict[str, torch.Tensor]:
    """A model in bfloat16, whose values tell the step."""
    count = TENSOR_BYTES // 2
    return {
        f"layer.{number}": torch.full((count,), float(step % 100 + number), dtype=torch.bfloat16)
        for number in range(nbytes // TENSOR_BYTES)
    }


class Sender(Worker):  # type: ignore[misc]
    """Has the part of verl's ActorRolloutRefWorker that the manager calls."""

    def __init__(self, backend: str, nbytes: int) -> None:
        super().__init__()
        config = engine_config(backend)
        import_external_libs(config.custom_backend_module or None)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            backend,
            is_master=self.rank == 0,
            bucket_size=BUCKET_MEGABYTES << 20,
            **config.engine_kwargs.get(backend, {}),
        )
        self.model = weights(nbytes, 0)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int, mode: str = "auto") -> dict[str, float]:
        """The model's values are those of the step before they are sent."""
        del mode
        for number, tensor in enumerate(self.model.values()):
            tensor.fill_(float(global_steps % 100 + number))
        tensors = iter(self.model.items())
        return await self.checkpoint_engine.send_weights(tensors, global_steps=global_steps) or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)  # type: ignore[untyped-decorator]
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """As verl's own."""
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)


class ServedWeights:
    """In the place of verl's adapter to a server: copies what comes into what it has."""

    def __init__(self, nbytes: int) -> None:
        self.model = weights(nbytes, 0)
        self.replica_rank, self.is_leader_rank = 0, True

    async def update_weights(
        self, found: AsyncIterator[tuple[str, torch.Tensor]], **_: object
    ) -> None:
        """Take all of them."""
        async for name, tensor in found:
            self.model[name].copy_(tensor)


class Receiver(CheckpointEngineWorker):  # type: ignore[misc]
    """verl's own worker."""

    def __init__(self, backend: str, nbytes: int) -> None:
        self.adapter = ServedWeights(nbytes)
        super().__init__(rollout_config(backend), None, self.adapter)

    async def served(self) -> dict[str, float]:
        """The first and the last value of each tensor, which are one number."""
        found = {}
        for name, tensor in self.adapter.model.items():
            first, last = float(tensor[0]), float(tensor[-1])
            found[name] = first if first == last else float("nan")
        return found


class TimedServer(Server):
    """How long it stood still."""

    def __init__(self) -> None:
        super().__init__()
        self.since: float | None = None
        self.stood_still = 0.0

    async def abort_all_requests(self, *, reject_request: bool = False) -> None:
        """Stop."""
        await super().abort_all_requests(reject_request=reject_request)
        self.since = self.since or time.monotonic()

    async def resume_generation(self) -> None:
        """Go on."""
        await super().resume_generation()
        if self.since is not None:
            self.stood_still += time.monotonic() - self.since
            self.since = None

    async def taken(self) -> float:
        """Seconds that it stood still since the last call."""
        found, self.stood_still = self.stood_still, 0.0
        return found


def rollout_config(backend: str) -> RolloutConfig:
    return RolloutConfig(name="vllm", checkpoint_engine=engine_config(backend))


class Replica(RolloutReplica):  # type: ignore[misc]
    """One worker and one server, whose process has `variables`."""

    def __init__(
        self, number: int, backend: str, nbytes: int, variables: Mapping[str, str]
    ) -> None:
        super().__init__(number, rollout_config(backend), None, gpus_per_node=1)
        self.group = worker_group(Receiver, variables, backend=backend, nbytes=nbytes)
        self.workers = self.group.workers
        self.servers = [ray.remote(TimedServer).options(num_cpus=0).remote()]

    async def launch_servers(self) -> None:
        """They run."""
