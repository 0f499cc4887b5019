"""A job of a scenario: applied, changed and read as a user does, wherever it runs."""

import asyncio
import copy
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from rollcall_cli import job_actions
from rollcall_cli.job_description import read_description
from rollcall_cli.job_summary import read_summary
from rollcall_operator.api.labels import JOB, ROLE, ROLLOUT
from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.errors import ApiError, UnreachableError
from rollcall_operator.kube.resources import PODS, RL_JOBS, Resource
from rollcall_protocol.pod_contract import METRICS_PORT

Object = dict[str, Any]
Need = tuple[Resource, Object]

EXAMPLES = Path(__file__).parents[2] / "examples"
STARTED = 120.0  # seconds, on two busy cores
LEARNED = 300.0
_LOOK_SECONDS = 0.2
_METRICS_BYTES = 4 << 20


def example(file: str, *, name: str, **spec: Any) -> Object:
    """The RLJob of an example under another name, with fields of its spec replaced."""
    body: Object = yaml.safe_load((EXAMPLES / file).read_text())
    body["metadata"]["name"] = name
    body["spec"] |= copy.deepcopy(spec)
    return body


class ScenarioJob:
    """One RLJob in a namespace, with the objects that it needs there."""

    def __init__(
        self, client: KubeClient, namespace: str, body: Object, needs: Sequence[Need] = ()
    ) -> None:
        self._client, self._namespace, self._needs = client, namespace, needs
        self._body = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
        self.name: str = body["metadata"]["name"]

    async def apply(self) -> None:
        """As `kubectl apply` does."""
        for resource, body in self._needs:
            await self._client.create(resource, body)
        await self._client.apply(self._body)

    async def summary(self) -> Object:
        """What `rollcall status` shows."""
        return await read_summary(self._client, namespace=self._namespace, name=self.name)

    async def until(self, what: Callable[[Object], bool], *, seconds: float = STARTED) -> Object:
        """The first summary of which `what` holds."""
        deadline, found = time.monotonic() + seconds, Object()
        while time.monotonic() < deadline:
            found = await self.summary()
            if what(found):
                return found
            await asyncio.sleep(_LOOK_SECONDS)
        description = await read_description(
            self._client, namespace=self._namespace, name=self.name
        )
        raise AssertionError(f"not within {seconds} s; last: {found}; {description}")

    async def trains(self, *, rollouts: int, steps: int = 3) -> None:
        """Wait until it has made so many more steps with exactly so many rollouts in sync."""
        await self.until(lambda s: in_sync(s) == rollouts == len(s["rollouts"]))
        await self.reaches(await self.step() + steps)

    async def reaches(self, step: int) -> int:
        """Wait until the trainer has made so many steps; the number that was seen first."""
        deadline = time.monotonic() + STARTED
        while (now := await self.step()) < step:
            assert time.monotonic() < deadline, f"step {now}, not {step}, after {STARTED} s"
            await asyncio.sleep(_LOOK_SECONDS)
        return now

    async def step(self) -> int:
        """How many steps the trainer has made, by its own metric: status is written less often."""
        return int((await self.metrics(f"{self.name}-trainer-0")).get("rollcall_step", 0))

    async def rewards(self) -> dict[str, float]:
        """Mean reward of the samples that each rollout generated itself."""
        found = {}
        for pod in await self.rollouts():
            reward = (await self.metrics(pod)).get("rollcall_rollout_reward", math.nan)
            if not math.isnan(reward):  # as it is before the first sample
                found[pod] = reward
        return found

    async def rollouts(self) -> list[str]:
        """Names of its rollouts' pods that are not being deleted."""
        return await self.pods(ROLLOUT)

    async def pods(self, role: str) -> list[str]:
        """Names of its pods of a role that are not being deleted."""
        labels = f"{JOB}={self.name},{ROLE}={role}"
        found = await self._client.list(PODS, namespace=self._namespace, labels=labels)
        return [p["metadata"]["name"] for p in found if "deletionTimestamp" not in p["metadata"]]

    async def metrics(self, pod: str) -> dict[str, float]:
        """A pod's metrics by name, and by `name{outcome}`; none while it does not answer."""
        try:
            text = await self._client.read_from_pod(
                namespace=self._namespace,
                name=pod,
                port=METRICS_PORT,
                route="/metrics",
                most_bytes=_METRICS_BYTES,
            )
        except (ApiError, UnreachableError):
            return {}
        families = text_string_to_metric_families(text.decode())
        return {_key(sample): sample.value for family in families for sample in family.samples}

    async def rewards_reach(self, reward: float, *, seconds: float = LEARNED) -> dict[str, float]:
        """Wait until each rollout's own samples have this mean reward."""
        deadline, found = time.monotonic() + seconds, dict[str, float]()
        while time.monotonic() < deadline:
            found = await self.rewards()
            if found and len(found) == len(await self.rollouts()) and min(found.values()) >= reward:
                return found
            await asyncio.sleep(_LOOK_SECONDS)
        raise AssertionError(f"rewards of the rollouts after {seconds} s: {found}")

    async def scale(self, pool: str, replicas: int) -> None:
        """`rollcall scale`."""
        await job_actions.scale(
            self._client, namespace=self._namespace, pool=pool, replicas=replicas
        )

    async def drain(self, pod: str) -> None:
        """`rollcall drain`."""
        await job_actions.drain(self._client, namespace=self._namespace, pod=pod)

    async def kill(self, pod: str) -> None:
        """`rollcall kill`."""
        await job_actions.kill(self._client, namespace=self._namespace, pod=pod)

    async def suspend(self, suspended: bool) -> None:
        """`rollcall suspend` and `rollcall resume`."""
        await job_actions.set_suspended(
            self._client, namespace=self._namespace, name=self.name, suspended=suspended
        )

    async def delete(self) -> None:
        """Delete it and what it needs, and end its pods: rollouts would wait for a trainer."""
        at, labels = self._namespace, f"{JOB}={self.name}"
        await self._client.delete(RL_JOBS, namespace=at, name=self.name)
        deadline = time.monotonic() + STARTED
        while pods := await self._client.list(PODS, namespace=at, labels=labels):
            assert time.monotonic() < deadline, f"pods of {self.name} are still there"
            for pod in pods:
                name = pod["metadata"]["name"]
                if "deletionTimestamp" in pod["metadata"]:
                    await self._client.delete(PODS, namespace=at, name=name, grace=0)
            await asyncio.sleep(_LOOK_SECONDS)
        for resource, body in self._needs:
            name = body["metadata"]["name"]
            await self._client.delete(resource, namespace=at, name=name)
            while await self._client.find(resource, namespace=at, name=name):
                assert time.monotonic() < deadline, f"{resource.kind} {name} is still there"
                await asyncio.sleep(_LOOK_SECONDS)


def in_sync(summary: Object) -> int:
    """How many rollouts serve the current weights."""
    return sum(rollout["inSync"] for rollout in summary["rollouts"])


def causes(summary: Object) -> list[str]:
    """What the epochs were opened for."""
    return [epoch["cause"] for epoch in summary.get("epochs") or ()]


def balance(metrics: dict[str, float]) -> tuple[float, float]:
    """How many prompts were dispatched, and what became of them; the same if none is lost."""

    def count(outcome: str) -> float:
        return metrics.get(f"rollcall_prompts_total{{{outcome}}}", 0.0)

    ended = sum(map(count, ("accepted", "rejected", "requeued")))
    return count("dispatched"), ended + metrics["rollcall_prompts_in_flight"]


def _key(sample: Any) -> str:
    outcome = sample.labels.get("outcome")
    return f"{sample.name}{{{outcome}}}" if outcome else str(sample.name)
