"""A whole job on this machine: trainer and rollout processes, and a fake operator."""

import asyncio
import itertools
import json
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.job_config import EngineRef, JobConfig
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberState
from rollcall_protocol.wire.json_codec import encode
from rollcall_protocol.wire.roster import DEFAULT_GROUP, EpochCause, RosterMember
from tests.networks import own_network
from tests.process.fake_operator import FakeOperator, ReceivedSnapshot
from tests.process.pods import ISSUER, Pod, variables
from tests.process.runtimes import some_runtimes
from tests.unit.rollcall_runtime.jobs import job_config, pool_config

FAST = {"settle": 0.2}
ENDLESS = {"max_steps": 1_000_000}
LAG_SECONDS = 0.01
STEP_SECONDS = 60.0  # for what takes one or two on a machine that has time
TRAINED_SECONDS = 300.0  # a whole training that takes one minute by itself
START_SECONDS = 120.0  # importing torch in several processes on two busy cores
WHOLE_TRAINING = [pytest.mark.slow, pytest.mark.timeout(START_SECONDS + TRAINED_SECONDS)]


@dataclass(frozen=True, slots=True)
class Prompts:
    """What became of all prompts so far."""

    dispatched: int
    accepted: int
    rejected: int
    requeued: int
    in_flight: int
    duplicate: int

    @property
    def balanced(self) -> bool:
        """Whether each dispatched prompt is counted exactly once."""
        return self.dispatched == self.accepted + self.rejected + self.requeued + self.in_flight


_OUTCOMES = [item.name for item in fields(Prompts) if item.name != "in_flight"]


def in_sync(snapshot: JobSnapshot, *pods: Pod) -> bool:
    """Whether these rollouts serve current weights."""
    states = {member.pod_uid: member.state for member in snapshot.members}
    return all(states.get(pod.uid) is MemberState.IN_SYNC for pod in pods)


class Lag:
    """How late this idle process itself is woken: the delay of a busy machine, seconds."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> float:
        """End watching; the worst delay."""
        self._task.cancel()
        return self.worst

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.worst = max(self.worst, time.monotonic() - due)


class LocalJob:
    """Use as an async context manager; every process ends with it.

    `rollout_engine` generates in all rollouts. With `own_reference` the pod `reference` is that of
    the job's reference.
    """

    def __init__(
        self,
        folder: Path,
        config: JobConfig | None = None,
        *,
        rollout_engine: EngineRef | None = None,
        own_reference: bool = False,
    ) -> None:
        self.config = config or job_config(membership=FAST)
        self._rollout_engine = rollout_engine or EngineRef("tiny")
        self.folder = folder
        self._stack = AsyncExitStack()
        # A network of its own in 127/8, so that several of these run on one machine.
        self._network = own_network()
        replicas = self.config.trainer_replicas
        if own_reference:
            after_the_trainers = f"{self._network}.{replicas + 1}"
            reference = replace(self.config.reference, host=after_the_trainers)
            self.config = replace(self.config, reference=reference)
        self._given = 0
        self.rollouts: list[Pod] = []
        self.trainers = [self._pod(f"reverse-trainer-{i}", "trainer") for i in range(replicas)]
        self.trainer = self.trainers[0]
        self.fronts: list[Pod] = []
        self.reference: Pod | None = None
        if own_reference:
            self.reference = self._pod("reverse-reference-0", "reference")
        self.operator = FakeOperator(
            job_uid=self.config.uid,
            coordinator_uid=self.trainer.uid,
            address=self.trainer.address,
            token=ISSUER.operator_token(job_uid=self.config.uid),
            tls=self.config.tls,
            ended=lambda: "" if self.trainer.running else self.trainer.log()[-2000:],
        )

    async def __aenter__(self) -> "LocalJob":
        await self._stack.enter_async_context(some_runtimes(self.folder))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.operator.stop()
        await asyncio.gather(*(pod.close() for pod in self._pods))
        await self._stack.aclose()

    @property
    def _pods(self) -> list[Pod]:
        others = filter(None, [self.reference])
        return [*self.rollouts, *self.trainers, *self.fronts, *others]

    async def start(self, *, rollouts: int) -> None:
        """Start everything and push the first roster."""
        for pod in (*self.trainers, *filter(None, [self.reference])):
            await pod.start()
        self.operator.start()
        for _ in range(rollouts):
            await self.launch()
        await self.push_roster(EpochCause.JOB_STARTED)

    async def start_front(self, *keys: str) -> Pod:
        """A pod of the front, for whom shows one of `keys`, if any; `config.front` must be true."""
        pod = self._pod(f"reverse-front-{len(self.fronts)}", "front")
        self.fronts.append(pod)
        folder = self.folder / "keys"
        folder.mkdir(exist_ok=True)
        (folder / pod_contract.API_KEYS_FILE).write_text("\n".join(keys))
        pod.variables[pod_contract.API_KEYS_DIR] = str(folder)
        settings = FrontConfig(without_keys=not keys)
        pod.variables[pod_contract.FRONT_CONFIG] = json.dumps(encode(settings))
        del pod.variables[pod_contract.STATE_DIR]  # it keeps nothing
        pod.variables.pop(pod_contract.TLS_DIR, None)  # agents do not believe the operator
        await pod.start()
        return pod

    @property
    def spare_address(self) -> str:
        """An address of this network that no pod has."""
        return f"{self._network}.250"

    async def train(self, *, rollouts: int) -> None:
        """Start, and wait for all rollouts to serve and for a few steps."""
        await self.start(rollouts=rollouts)
        await self.operator.until(lambda s: in_sync(s, *self.rollouts), seconds=START_SECONDS)
        await self.steps(5, seconds=STEP_SECONDS)

    async def launch(
        self, *, group: str = DEFAULT_GROUP, imports: str = "", **variables: str
    ) -> Pod:
        """A new rollout pod with `variables` of its own; `push_roster` puts it on the roster."""
        pod = self.place(group=group)
        pod.variables.update(variables)
        pod.imports = imports
        await pod.start()
        return pod

    def place(self, *, group: str = DEFAULT_GROUP) -> Pod:
        """A new rollout pod that does not start."""
        pod = self._pod(f"reverse-cpu-{len(self.rollouts)}", "rollout", group=group)
        self.rollouts.append(pod)
        return pod

    async def push_roster(self, cause: EpochCause, *, without: tuple[Pod, ...] = ()) -> None:
        """Push a roster of all rollouts, but for some."""
        members = tuple(
            RosterMember(pod.uid, pod.name, pod.address, "reverse-cpu", pod.group)
            for pod in self.rollouts
            if pod not in without
        )
        await self.operator.push(members, cause)

    async def reach(self, step: int, *, seconds: float) -> None:
        """Wait until training has done `step` steps."""
        await self.operator.until(lambda s: s.progress.step >= step, seconds=seconds)

    async def steps(self, count: int, *, seconds: float) -> None:
        """Wait until training has gone on by `count` steps."""
        await self.reach(self.operator.last.progress.step + count, seconds=seconds)

    async def finished(self, *, seconds: float = TRAINED_SECONDS) -> ReceivedSnapshot:
        """The first state in which training is over."""
        return await self.operator.until(lambda s: s.finished is not None, seconds=seconds)

    async def prompts(self) -> "Prompts":
        """The ledger, as the trainer's metrics have it."""
        values = await self.trainer.metrics()
        return Prompts(
            **{name: int(values[f"prompts_total{{{name}}}"]) for name in _OUTCOMES},
            in_flight=int(values["prompts_in_flight"]),
        )

    def step_seconds(self) -> list[float]:
        """Seconds between steps' ends in the trainer's current run, by its log."""
        ends = [datetime.fromisoformat(line["time"]).timestamp() for line in self._step_lines()]
        return [after - before for before, after in itertools.pairwise(ends)]

    def step_figures(self) -> list[dict[str, float]]:
        """The figures of each step in the trainer's current run, by its log."""
        return [line["figures"] for line in self._step_lines()]

    def _step_lines(self) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.trainer.log().splitlines() if line[:1] == "{")
        return [line for line in lines if line["message"].startswith("step ")]

    def _pod(self, name: str, role: str, *, group: str = DEFAULT_GROUP) -> Pod:
        self._given += 1
        address, uid = f"{self._network}.{self._given}", str(uuid.uuid4())
        return Pod(
            name,
            uid,
            address,
            role,
            self.folder,
            variables(
                self.config,
                pod=name,
                uid=uid,
                address=address,
                folder=self.folder,
                coordinator=f"{self._network}.1",
                pool=pool_config(sync_group=group, engine=self._rollout_engine)
                if role == "rollout"
                else None,
            ),
            group,
        )
