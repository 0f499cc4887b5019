"""Opt-in: verl's own trainers go on while rollout replicas come, go and die.

    VERL_USE_EXTERNAL_MODULES=rollcall.verl_elastic

in the environment of `ray start` in all pods: verl imports it in each of its processes. It sets
what verl 0.9.1 has no setting for, and logs that:

- the manager of trainers that name its class in their code (v1, fully asynchronous):
  RollcallManager where the backend is `rollcall`;
- the client of the servers asks another server when the one that it asked has died;
- the load balancer forgets servers that have died. An external one (`router_config_path`) stays.

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
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from rollcall.errors import RollcallError
from rollcall.verl import NAME, RollcallManager

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

SERVERS_SECONDS = 600.0  # for a server to come when all have died
LOOK_SECONDS = 1.0

_MANAGERS = (  # modules that have the manager's class under its name
    "verl.checkpoint_engine",
    "verl.checkpoint_engine.base",
    "verl.trainer.ppo.v1.trainer_base",
    "verl.trainer.ppo.v1.trainer_separate_async",
    "verl.experimental.fully_async_policy.fully_async_trainer",
)


class ElasticManager(CheckpointEngineManager):  # type: ignore[misc]
    """verl's manager, by its own arguments: RollcallManager where the backend is `rollcall`."""

    def __new__(cls, config: Any, *arguments: Any, **named: Any) -> Any:
        """Not of this class, so that nothing of it is called after."""
        chosen = RollcallManager if config.backend == NAME else CheckpointEngineManager
        log.info("the manager of backend %s is %s", config.backend, chosen.__name__)
        return chosen(config, *arguments, **named)


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


def install() -> None:
    """Set all this in the process, once. RollcallError names what this verl does not have."""
    router = importlib.import_module("verl.workers.rollout.router")
    _replace(router, "GlobalRequestLoadBalancer", LivingServersBalancer)
    _replace(LLMServerClient, "generate", asks_another(LLMServerClient.generate))
    begin = "_init_global_load_balancer"
    _replace(LLMServerManager, begin, gives_to_replicas(getattr(LLMServerManager, begin)))
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
