"""What verl 0.9.1 lacks to train without GPUs: a platform, its FSDP engine there, and servers.

VERL_USE_EXTERNAL_MODULES names it. A server is transformers in an actor, in the place of vLLM's.
"""

from __future__ import annotations

import asyncio
import threading
import types
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from transformers import AutoModelForCausalLM
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.utils import distributed
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.rollout import base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = "transformers"
"""verl's `rollout.name` for the servers of this file."""


class Cpu(PlatformCUDA):  # type: ignore[misc]
    """Ray believes in GPUs, by whose number verl places its actors; torch has none."""

    device_name = "cpu"

    @property
    def device_module(self) -> Any:
        """torch.cpu, with what verl asks of a GPU's module."""
        return _CPU_MODULE

    def is_available(self) -> bool:
        """As it is."""
        return True

    def current_device(self) -> Any:
        """Where verl moves tensors."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """One."""
        return 1

    def communication_backend_name(self) -> str:
        """Of torch.distributed."""
        return "gloo"

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs beside."""

    def manual_seed(self, seed: int) -> None:
        """Of torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        """There are none."""

    def empty_cache(self) -> None:
        """There is none."""

    def nvtx_range(self, msg: str) -> Any:
        """No ranges."""
        del msg
        return nullcontext()


_CPU_MODULE = types.SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("_")},
    empty_cache=lambda: None,
    get_device_name=lambda *_: "CPU",
    max_memory_allocated=lambda *_: 0,
    max_memory_reserved=lambda *_: 0,
    memory_allocated=lambda *_: 0,
    memory_reserved=lambda *_: 0,
    reset_peak_memory_stats=lambda *_: None,
    manual_seed=torch.manual_seed,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    mem_get_info=lambda *_: (1 << 34, 1 << 34),
)


class Server:
    """Generates one sample at a time, and says the step of its weights."""

    def __init__(self, model: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._step: int | None = None
        self._busy = threading.Lock()

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: object
    ) -> TokenOutput:
        """Tokens until the end token, or `max_tokens`."""
        return await asyncio.to_thread(self._sample, prompt_ids, sampling_params)

    @torch.no_grad()
    def _sample(self, prompt: list[int], params: dict[str, Any]) -> TokenOutput:
        tokens, logprobs = list(prompt), []
        end = self._model.config.eos_token_id
        with self._busy:
            for _ in range(params.get("max_tokens") or params["max_new_tokens"]):
                logits = self._model(torch.tensor([tokens])).logits[0, -1].float()
                distribution = torch.log_softmax(logits / (params["temperature"] or 1e-6), -1)
                token = int(torch.multinomial(distribution.exp(), 1))
                tokens.append(token)
                logprobs.append(float(distribution[token]))
                if token == end:
                    break
            return TokenOutput(
                token_ids=tokens[len(prompt) :],
                log_probs=logprobs,
                stop_reason="completed",
                extra_fields={"global_steps": self._step},
            )

    async def load(self, tensors: dict[str, torch.Tensor], step: int) -> None:
        """Serve these."""

        def loaded() -> None:
            with self._busy:
                self._model.load_state_dict(tensors, strict=False)
                self._step = step

        await asyncio.to_thread(loaded)

    async def nothing(self, **_: object) -> None:
        """What a server of vLLM does about its caches."""

    abort_all_requests = release_kv_cache = resume_kv_cache = resume_generation = nothing
    clear_kv_cache = wake_up = sleep = nothing


class Adapter(BaseRollout):  # type: ignore[misc]
    """Beside a server: gives it what verl's worker receives."""

    def __init__(self, *arguments: Any, replica_rank: int = -1, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.replica_rank, self.is_leader_rank = replica_rank, True

    async def update_weights(
        self,
        weights: AsyncIterator[tuple[str, torch.Tensor]],
        global_steps: int = 0,
        **_: object,
    ) -> None:
        """All at once."""
        tensors = {name: tensor.clone() async for name, tensor in weights}
        server = ray.get_actor(server_name(self.replica_rank))
        await server.load.remote(tensors, global_steps)

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Nothing to release."""


def server_name(rank: int) -> str:
    """Of the actor."""
    return f"transformers_server_{rank}"


class Replica(RolloutReplica):  # type: ignore[misc]
    """One worker, and its server on the same node."""

    async def launch_servers(self) -> None:
        """Beside the worker."""
        node = await self.workers[0].__ray_call__.remote(
            lambda _: ray.get_runtime_context().get_node_id()
        )
        made = ray.remote(Server).options(
            name=server_name(self.replica_rank),
            num_cpus=0,
            max_concurrency=64,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        self._server_handle = made.remote(self.model_config.path)
        self._server_address = f"server-{self.replica_rank}"
        self.servers = [self._server_handle]

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """The server ends what it samples before it loads."""


platform_manager.PlatformRegistry.register(platform="cpu")(Cpu)
platform_manager.set_platform(Cpu())
EngineRegistry.register("language_model", ["fsdp", "fsdp2"], "cpu")(FSDPEngineWithLMHead)
RolloutReplicaRegistry.register(NAME, lambda: Replica)
base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.Adapter"  # noqa: SLF001 - no other way
# verl names gloo for CPUs, and the platform's backend for its device.
distributed.get_device_name = lambda: "cuda"
