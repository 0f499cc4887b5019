"""A program of verl on Ray's nodes, which stand for pods: one comes, and one is lost.

`python -m ... PODS` with JSON: the variables of the trainer's pod and of three rollout pods. Prints
a line of JSON for each thing that was seen. VERL_USE_EXTERNAL_MODULES names rollcall.verl_elastic.
"""

import asyncio
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import ray
from ray.cluster_utils import Cluster
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.workers.config import RolloutConfig
from verl.workers.rollout import RolloutReplica
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from rollcall.verl_replicas import ROLLOUT, TRAINER, nodes_with
from tests.plugins.trainers_of_ones_own.verl.actors import (
    Receiver,
    Sender,
    Server,
    checkpoint_engine,
    checksum,
    weights,
)

SERVER = "server"  # a resource of rollout pods, beside the GPU that Ray believes in
ROLLOUT_POD = {"num_cpus": 4, "num_gpus": 1, "resources": {ROLLOUT: 1, SERVER: 1}}
ANSWER_SECONDS = 3.0


class GeneratingServer(Server):
    """In the place of a server of vLLM; its answer says who it is."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    async def generate(self, **_: object) -> Any:
        """After a while."""
        await asyncio.sleep(ANSWER_SECONDS)
        return SimpleNamespace(rank=self._rank, extra_fields={"global_steps": 0})


class PodReplica(RolloutReplica):  # type: ignore[misc]
    """One worker and one server, in a rollout pod that has none."""

    async def init_standalone(self) -> None:
        """As verl's own, without GPUs."""
        self.resource_pool = pool(rollout=True)
        self.group = group(Receiver, self.resource_pool, rollout_config=self.config)
        self.workers = self.group.workers
        await self.launch_servers()

    async def launch_servers(self) -> None:
        """Beside the worker."""
        made = ray.remote(GeneratingServer).options(num_cpus=0, resources={SERVER: 1})
        self._server_handle = made.remote(self.replica_rank)
        self._server_address = f"server-{self.replica_rank}"
        self.servers = [self._server_handle]


def pool(*, rollout: bool) -> RayResourcePool:
    """For one worker; a rollout's is in a pod of rollouts, which alone have GPUs."""
    return RayResourcePool([1], use_gpu=rollout, max_colocate_count=1)


def group(cls: type, where: RayResourcePool, **arguments: Any) -> RayWorkerGroup:
    """One worker, without a GPU of its own."""
    made = RayClassWithInitArgs(cls=ray.remote(cls), **arguments)
    return RayWorkerGroup(
        resource_pool=where, ray_cls_with_init=made, use_gpu=False, device_name="cuda"
    )


class Anywhere:
    """An actor whose place is left to Ray, as verl leaves that of its load balancer."""

    def node(self) -> str:
        """Where it is."""
        return str(ray.get_runtime_context().get_node_id())


async def outside_of(rollout_nodes: set[str], count: int = 16) -> bool:
    """Whether none of so many is in a rollout pod; without CPUs of its own, Ray draws a node."""
    actors = [ray.remote(num_cpus=0)(Anywhere).remote() for _ in range(count)]
    found = {await actor.node.remote() for actor in actors}
    for actor in actors:
        ray.kill(actor)
    return not found & rollout_nodes


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def balancer_of(replicas: list[PodReplica]) -> Any:
    """That of verl's own, as its trainers make it."""
    made = object.__new__(LLMServerManager)
    made.rollout_replicas, made.rollout_config = replicas, SimpleNamespace()
    made.server_handles = [replica.server_handle for replica in replicas]
    made.server_addresses = [replica.server_address for replica in replicas]
    made._load_balancer_cls = None
    await made._init_global_load_balancer()
    return made.global_load_balancer


async def loaded(replicas: list[Any]) -> list[str]:
    return [await replica.workers[0].loaded.remote() for replica in replicas]


async def all_loaded(replicas: list[Any], count: int, step: int) -> bool:
    """Whether there are so many, and all have loaded the weights of the step."""
    return await loaded(replicas) == [checksum(dict(weights(step)))] * count


async def generate(client: LLMServerClient, requests: int, *, wait: float = 0) -> list[int]:
    """Who answered."""
    asked = [
        asyncio.create_task(client.generate(f"r{i}", prompt_ids=[1], sampling_params={}))
        for i in range(requests)
    ]
    await asyncio.sleep(wait)
    return [answer.rank for answer in await asyncio.gather(*asked)]


async def updated_until_two(manager: CheckpointEngineManager, step: int) -> int:
    """The step of the update in which another pod's replica took part."""
    deadline = time.monotonic() + 90
    while len(manager.replicas) < 2 and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        step += 1
        await asyncio.to_thread(manager.update_weights, step)
    replicas = manager.replicas
    say(replicas=len(replicas), whole=await all_loaded(replicas, 2, step))
    return step


async def train(cluster: Cluster, pods: list[dict[str, str]]) -> None:
    sender = group(Sender, pool(rollout=False))  # there is no other pod yet
    cluster.add_node(**ROLLOUT_POD, env_vars=pods[0])
    config = RolloutConfig(name="vllm", checkpoint_engine=checkpoint_engine())
    first = PodReplica(0, config, None, gpus_per_node=1)
    await first.init_standalone()
    balancer = await balancer_of([first])
    manager = CheckpointEngineManager(config=checkpoint_engine(), actor_wg=sender, replicas=[first])
    say(manager=type(manager).__name__)
    rollout = SimpleNamespace(name="vllm", full_determinism=False)
    client = LLMServerClient(
        SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)), balancer
    )
    await asyncio.to_thread(manager.update_weights, 1)
    say(update=1, replicas=len(manager.replicas))
    say(outside_of_rollout_pods=await outside_of(nodes_with(ROLLOUT)))
    second = cluster.add_node(**ROLLOUT_POD, env_vars=pods[1])
    step = await updated_until_two(manager, 1)
    say(servers=await balancer.get_all_servers.remote())
    say(answered=sorted(set(await generate(client, 8))))
    asked = asyncio.create_task(generate(client, 8))
    await asyncio.sleep(ANSWER_SECONDS / 3)
    cluster.remove_node(second, allow_graceful=False)
    say(answered_after_a_loss=sorted(await asked))
    say(servers=await balancer.get_all_servers.remote())
    step += 1
    await asyncio.to_thread(manager.update_weights, step)
    say(
        update=step,
        left_out=sorted(manager.left_out),
        whole=await all_loaded(manager.replicas, 1, step),
    )
    cluster.add_node(**ROLLOUT_POD, env_vars=pods[2])
    step = await updated_until_two(manager, step)
    await asyncio.to_thread(manager.finish, step)
    say(finished=step)


def main() -> None:
    trainer, *pods = json.loads(sys.argv[1])
    node: dict[str, Any] = {
        "num_cpus": 4,
        "object_store_memory": 100 * 2**20,
        "include_dashboard": False,
    }
    node["resources"] = {TRAINER: 1}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"env_vars": trainer})
    ray.init(address=cluster.address, log_to_driver=False)
    asyncio.run(train(cluster, pods))


if __name__ == "__main__":
    main()
