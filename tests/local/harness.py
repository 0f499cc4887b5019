"""A whole job on this machine: a trainer, rollouts, and somebody who calls the roll."""

import random
import uuid
from pathlib import Path

from rollcall_protocol import env
from rollcall_protocol.config import JobConfig
from rollcall_protocol.roster import EpochCause, RosterMember
from tests.local.pods import TOKENS, Pod, variables
from tests.local.roll import Roll
from tests.unit.rollcall_runtime.jobs import job_config, pool_config

FAST = {"settle": 0.2}


class LocalJob:
    """Use as an async context manager; every process ends with it."""

    def __init__(self, folder: Path, config: JobConfig | None = None) -> None:
        self.config = config or job_config(membership=FAST)
        self.folder = folder
        # A network of its own in 127/8, so that several of these run on one machine.
        self._network = f"127.{random.randint(2, 250)}.{random.randint(0, 250)}"
        self._given = 0
        self.rollouts: list[Pod] = []
        self.trainer = self._pod("reverse-trainer-0", "trainer")
        self.roll = Roll(
            job_uid=self.config.uid, coordinator_uid=self.trainer.uid,
            address=self.trainer.address, token=TOKENS[env.OPERATOR_TOKEN_FILE],
        )  # fmt: skip

    async def __aenter__(self) -> "LocalJob":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.roll.stop()
        for pod in (*self.rollouts, self.trainer):
            if pod.process is not None and pod.running:
                pod.process.terminate()
        for pod in (*self.rollouts, self.trainer):
            pod.close()

    async def start(self, *, rollouts: int) -> None:
        """Start everything and push the first roster."""
        self.trainer.start()
        self.roll.start()
        for _ in range(rollouts):
            self.launch()
        await self.call(EpochCause.JOB_STARTED)

    def launch(self) -> Pod:
        """A new rollout pod; on the roster with the next `call`."""
        pod = self._pod(f"reverse-cpu-{len(self.rollouts)}", "rollout")
        self.rollouts.append(pod)
        pod.start()
        return pod

    async def call(self, cause: EpochCause, *, without: tuple[Pod, ...] = ()) -> None:
        """Push a roster of all rollouts, but for some."""
        members = tuple(
            RosterMember(pod.uid, pod.name, pod.address, "reverse-cpu")
            for pod in self.rollouts
            if pod not in without
        )
        await self.roll.push(members, cause)

    async def reach(self, step: int, *, seconds: float) -> None:
        """Wait until training has done `step` steps."""
        await self.roll.until(lambda s: s.progress.step >= step, seconds=seconds)

    def _pod(self, name: str, role: str) -> Pod:
        self._given += 1
        address, uid = f"{self._network}.{self._given}", str(uuid.uuid4())
        return Pod(
            name, uid, address, role, self.folder,
            variables(
                self.config, pod=name, uid=uid, address=address, folder=self.folder,
                coordinator=f"{self._network}.1",
                pool=pool_config() if role == "rollout" else None,
            ),
        )  # fmt: skip
