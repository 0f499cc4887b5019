"""Opt-in: verl's own trainers go on while rollout replicas come, go and die.

    VERL_USE_EXTERNAL_MODULES=rollcall.verl_elastic

in the environment of `ray start` in all pods: verl imports it in each of its processes. It sets
what verl 0.9.1 has no setting for, and logs that:

- the manager of trainers that name its class in their code (v1, fully asynchronous):
  RollcallManager where the backend is `rollcall`;
- actors and rollout workers wait for pods of their own kind, where `ray start` names it, and
  what verl spreads over all nodes, or leaves to Ray, such as the load balancer, stays out of
  rollout pods, which may be lost;
- the client of the servers asks another server when the one that it asked has died;
- the load balancer forgets servers that have died. An external one (`router_config_path`) stays;
- where v1's training has ended, so has the job, as if its program had called `finish`.

RollcallManager knows the load balancer then: it says who was left out, and which replica is new.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import ray
from verl.checkpoint_engine.base import CheckpointEngineManager
from verl.single_controller.ray import ResourcePoolManager
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from rollcall.errors import RollcallError
from rollcall.verl import NAME, RollcallManager
from rollcall.verl_replicas import ROLLOUT, TRAINER, nodes_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

SERVERS_SECONDS = 600.0  # for a server to come when all have died
PODS_SECONDS = 600.0  # for the pods that training begins with
LOOK_SECONDS = 1.0

_V1 = "verl.trainer.ppo.v1.trainer_base"
_ROLLOUT_POOLS = "rollout_pool_"  # as RolloutReplica.init_standalone names its own
_SHARE = 1e-4  # of what a trainer pod gives, for each actor: Ray's smallest

_SPREADING = (  # modules that put an actor on each node
    "verl.experimental.agent_loop.agent_loop",
    "verl.experimental.reward_loop.reward_loop",
    "transfer_queue.utils.common",
)
_MANAGERS = (  # modules that have the manager's class under its name
    "verl.checkpoint_engine",
    "verl.checkpoint_engine.base",
    _V1,
    "verl.trainer.ppo.v1.trainer_separate_async",
    "verl.experimental.fully_async_policy.fully_async_trainer",
)


class ElasticManager(CheckpointEngineManager):  # type: ignore[misc]
    """verl's manager, by its own arguments: RollcallManager where the backend is `rollcall`."""

    def __new__(cls, config: Any, *arguments: Any, **named: Any) -> Any:
        """Not of this class, so that nothing of it is called after."""
        chosen = RollcallManager if config.backend == NAME else CheckpointEngineManager
        log.info("the manager of backend %s is %s", config.backend, chosen.__name__)
        made = chosen(config, *arguments, **named)
        if chosen is RollcallManager and _V1 in sys.modules:
            trainer = sys.modules[_V1].PPOTrainer
            trainer.fit = finishes(trainer.fit, made)
        return made


def finishes(fit: Callable[..., None], manager: RollcallManager) -> Callable[..., None]:
    """Trains, and then says that the job has succeeded: nothing that verl calls after says so."""

    @functools.wraps(fit)
    def fitted(self: Any, *arguments: Any, **named: Any) -> None:
        fit(self, *arguments, **named)
        manager.finish(self.global_steps)

    return fitted


class LivingServersBalancer(GlobalRequestLoadBalancer):  # type: ignore[misc]
    """verl's load balancer, an actor that forgets servers when it is asked to look at them."""

    def forget_dead(self) -> list[str]:
        """The servers that had died; one that only says nothing is none."""
        asked = {name: server.__ray_ready__.remote() for name, server in self._servers.items()}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=LOOK_SECONDS)
        dead = [name for name, ready in asked.items() if _has_died(ready)]
        self.remove_servers(dead)
        if dead:
            log.warning("the load balancer forgets servers that have died: %s", ", ".join(dead))
        return dead


def _has_died(ready: Any) -> bool:
    try:
        ray.get(ready, timeout=0)
    except ray.exceptions.ActorDiedError:
        return True
    except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
        pass  # Ray may reach it again, or say later that it has died
    return False


def asks_another(
    generate: Callable[..., Awaitable[Any]],
) -> Callable[..., Awaitable[Any]]:
    """The client's `generate`, which asks again when a server dies, or waits for one to come."""

    @functools.wraps(generate)
    async def asked(self: Any, request_id: Any, **request: Any) -> Any:
        deadline = time.monotonic() + SERVERS_SECONDS
        while True:
            try:
                return await generate(self, request_id, **request)
            except ray.exceptions.RayActorError as error:
                # Of the load balancer itself, this raises.
                await self._load_balancer.forget_dead.remote()
                problem: Exception = error
            except RuntimeError as error:
                if "No available servers" not in str(error):
                    raise
                problem = error
                await asyncio.sleep(LOOK_SECONDS)
            if time.monotonic() > deadline:
                raise problem
            log.warning("request %s goes to another server: %s", request_id, type(problem).__name__)

    return asked


def gives_to_replicas(begin: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Makes the load balancer, and has each replica know it."""

    @functools.wraps(begin)
    async def begun(self: Any) -> None:
        await begin(self)
        for replica in self.rollout_replicas:
            replica.load_balancer = self.global_load_balancer

    return begun


def places_by_kind(create: Callable[[Any], None]) -> Callable[[Any], None]:
    """Makes the pools, in pods of their kind, once there are as many GPUs as they need."""

    @functools.wraps(create)
    def created(self: Any) -> None:
        deadline = time.monotonic() + PODS_SECONDS
        while True:
            try:
                create(self)
                break
            except ValueError as error:
                # Pods start in any order, and verl itself does not wait for them.
                if "less than total desired" not in str(error) or time.monotonic() > deadline:
                    raise
                log.warning("waiting for more of Ray's nodes: %s", error)
                time.sleep(LOOK_SECONDS)
        for name, pool in self.resource_pool_dict.items():
            kind = ROLLOUT if name.startswith(_ROLLOUT_POOLS) else TRAINER
            if nodes_with(kind):
                pool.accelerator_type = kind  # a share of it goes into each of Ray's bundles

    return created


class TrainersRay:
    """The module `ray`, whose nodes are those of no rollout pod."""

    def __getattr__(self, name: str) -> Any:
        """All else is Ray's own."""
        return getattr(ray, name)

    def nodes(self) -> list[dict[str, Any]]:
        """As `ray.nodes`; all of them where no pod names its kind."""
        return [node for node in ray.nodes() if ROLLOUT not in node["Resources"]] or ray.nodes()


def in_trainer_pods(create: Callable[..., Any]) -> Callable[..., Any]:
    """Makes an actor in a trainer pod, if its options leave the place to Ray."""

    @functools.wraps(create)
    def created(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        strategy = options.get("scheduling_strategy")
        places = (options.get("resources"), options.get("placement_group"))
        free = strategy in {None, "DEFAULT", "SPREAD"} and not any(places)
        if free and ray.is_initialized() and nodes_with(TRAINER):
            options["resources"] = {TRAINER: _SHARE}
        return create(self, args, kwargs, **options)

    return created


def install() -> None:
    """Set all this in the process, once. RollcallError names what this verl does not have."""
    logging.getLogger("rollcall").setLevel(logging.INFO)  # verl has warnings alone printed
    router = importlib.import_module("verl.workers.rollout.router")
    _replace(router, "GlobalRequestLoadBalancer", LivingServersBalancer)
    create = "create_resource_pool"
    _replace(ResourcePoolManager, create, places_by_kind(getattr(ResourcePoolManager, create)))
    _replace(LLMServerClient, "generate", asks_another(LLMServerClient.generate))
    begin = "_init_global_load_balancer"
    _replace(LLMServerManager, begin, gives_to_replicas(getattr(LLMServerManager, begin)))
    made = "_remote"  # where all ways to make an actor end
    actor_class = ray.actor.ActorClass
    _replace(actor_class, made, in_trainer_pods(getattr(actor_class, made)))
    for name in _SPREADING:
        _replace(importlib.import_module(name), "ray", TrainersRay())
    for name in _MANAGERS:
        # The others import the class when they are loaded, from the first two.
        if name in sys.modules:
            _replace(sys.modules[name], "CheckpointEngineManager", ElasticManager)
    log.info("verl's managers, clients and load balancers go on when rollout replicas die")


def _replace(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        raise RollcallError(
            f"rollcall.verl_elastic: {owner.__name__} has no {name} in this verl; leave "
            "VERL_USE_EXTERNAL_MODULES out, or install verl 0.9.1"
        )
    setattr(owner, name, value)


try:
    install()
except BaseException as error:
    print(f"rollcall.verl_elastic: {type(error).__name__}: {error}", file=sys.stderr)
    raise
