"""Ray's actors around verl's own workers: an actor that sends, and rollouts that load and count.

As tests/checkpoint_engine/test_utils.py of verl 0.9.1 has them, without models and GPUs.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import ray
import torch
from verl.checkpoint_engine import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.rollout import RolloutReplica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

SHAPES = {"embed": (64, 8), "layers.0": (8, 8), "norm": (8,), "head": (64, 8)}


def checkpoint_engine() -> CheckpointEngineConfig:
    """What a user writes into verl's configuration."""
    return CheckpointEngineConfig(backend="rollcall", custom_backend_module="rollcall.verl")


def weights(seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for name, shape in SHAPES.items():
        yield name, torch.randn(shape, generator=generator)


def checksum(tensors: dict[str, torch.Tensor]) -> str:
    """The same for the same names and values alone."""
    return " ".join(f"{name} {tensor.double().sum():.9f}" for name, tensor in tensors.items())


class Sender(Worker):  # type: ignore[misc]
    """Has the part of verl's ActorRolloutRefWorker that the manager calls."""

    def __init__(self) -> None:
        super().__init__()
        config = checkpoint_engine()
        import_external_libs(config.custom_backend_module)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend, is_master=self.rank == 0, bucket_size=1
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int, mode: str = "auto") -> dict[str, float]:
        """Weights whose seed is the step; a step below 0 fails in their middle."""
        del mode
        tensors = broken() if global_steps < 0 else weights(global_steps)
        sent = await self.checkpoint_engine.send_weights(tensors, global_steps=global_steps)
        return sent or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)  # type: ignore[untyped-decorator]
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """As verl's own."""
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)


def broken() -> Iterator[tuple[str, torch.Tensor]]:
    yield next(weights(0))
    raise KeyError("the second")


class LoadedWeights:
    """In the place of verl's adapter to a server of vLLM."""

    def __init__(self) -> None:
        self.loaded = ""
        self.dies_in_the_middle = False
        self.replica_rank, self.is_leader_rank = 0, True

    async def update_weights(
        self, found: AsyncIterator[tuple[str, torch.Tensor]], **_: object
    ) -> None:
        """Load them; of a failing update nothing is kept."""
        tensors = {}
        async for name, tensor in found:
            tensors[name] = tensor.clone()
            if self.dies_in_the_middle:
                os._exit(1)
        self.loaded = checksum(tensors)


class Receiver(CheckpointEngineWorker):  # type: ignore[misc]
    """verl's own worker."""

    def __init__(self, rollout_config: RolloutConfig) -> None:
        self.adapter = LoadedWeights()
        super().__init__(rollout_config, None, self.adapter)

    async def loaded(self) -> str:
        """The checksum of what was loaded last."""
        return self.adapter.loaded

    async def die_in_the_middle(self) -> None:
        """Of the next update."""
        self.adapter.dies_in_the_middle = True


class Server:
    """In the place of a server of vLLM: whether it generates."""

    def __init__(self) -> None:
        self.generates, self.stops = True, 0

    async def abort_all_requests(self, *, reject_request: bool = False) -> None:
        """Stop."""
        del reject_request
        self.generates, self.stops = False, self.stops + 1

    async def release_kv_cache(self) -> None:
        """There is none."""

    async def resume_kv_cache(self) -> None:
        """There is none."""

    async def resume_generation(self) -> None:
        """Go on."""
        self.generates = True

    async def state(self) -> tuple[bool, int]:
        """Whether it generates, and how often it was stopped."""
        return self.generates, self.stops


class Replica(RolloutReplica):  # type: ignore[misc]
    """One worker and one server, in the pod with `variables`."""

    def __init__(self, number: int, variables: Mapping[str, str]) -> None:
        config = RolloutConfig(name="vllm", checkpoint_engine=checkpoint_engine())
        super().__init__(number, config, None, gpus_per_node=1)
        self.group = worker_group(Receiver, dict(variables), rollout_config=config)
        self.workers = self.group.workers
        self.servers = [ray.remote(Server).options(num_cpus=0).remote()]

    async def launch_servers(self) -> None:
        """They run."""

    async def loaded(self) -> str:
        """The checksum of what its worker loaded last."""
        return str(await self.workers[0].loaded.remote())

    async def generates(self) -> bool:
        """Whether its server does."""
        return bool((await self.servers[0].state.remote())[0])

    async def stops(self) -> int:
        """How often its server was stopped."""
        return int((await self.servers[0].state.remote())[1])

    async def kill(self) -> None:
        """End worker and server, as when their pod is lost."""
        for actor in (*self.workers, *self.servers):
            ray.kill(actor)
        await asyncio.sleep(0)


def start_ray() -> None:
    """On this machine alone, for actors that mostly wait."""
    ray.init(
        address="local",
        num_cpus=16,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
    )


def worker_group(cls: type, variables: Mapping[str, str], **arguments: Any) -> RayWorkerGroup:
    """One worker whose process has `variables`, as one that Ray starts in a pod."""
    pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
    made = RayClassWithInitArgs(cls=ray.remote(cls), **arguments)
    return RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=made,
        use_gpu=False,
        device_name="cpu",
        worker_env=dict(variables),
    )
