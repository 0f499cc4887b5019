"""Does attacks one after the other, and watches the job meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from hack.attacks import worker_vitals
from hack.attacks.attack import NotRefusedError
from hack.attacks.compare_weights import compare_served_weights
from hack.attacks.outcome import AttackOutcome, grown, peaks, steps_lost
from tests.process.harness import in_sync

if TYPE_CHECKING:
    from hack.attacks.attack import Attack
    from hack.attacks.target import AttackedJob
    from hack.attacks.worker_vitals import WorkerMemory
    from rollcall_protocol.wire.job_snapshot import JobSnapshot

RECOVERY_SECONDS = 60.0
COMPARE_SECONDS = 20.0
COUNT_SECONDS = 5.0  # in which what was refused appears in the metrics
STEPS_AFTER = 2


class AttackRunner:
    """Does attacks on one job. `rate` is that of its steps a second before; 0 if not measured."""

    def __init__(self, job: AttackedJob) -> None:
        self._job = job
        self._processes = worker_vitals.process_ids(job.workers)
        self._memory: dict[str, WorkerMemory] = {}
        self.rate = 0.0

    async def measure(self, seconds: float) -> None:
        """Watch the job for a while without attacks: its rate of steps, and its memory."""
        worker_vitals.forget_peaks(self._job.workers)
        began, first = time.monotonic(), self._step
        await asyncio.sleep(seconds)
        self.rate = (self._step - first) / (time.monotonic() - began)
        self._memory = worker_vitals.memory(self._job.workers)

    async def run(self, attack: Attack) -> AttackOutcome:
        """Do one attack, then wait until the job trains on and serves the right weights."""
        job = self._job
        before, logged = await job.refusals(), worker_vitals.tracebacks(job.workers)
        worker_vitals.forget_peaks(job.workers)
        began, first = time.monotonic(), self._step
        problem = await self._attack(attack)
        lost = steps_lost(
            seconds=time.monotonic() - began, steps=self._step - first, steps_a_second=self.rate
        )
        problem = problem or await self._problem_after()
        counted = await self._counted(attack, before)
        new = [found for found in worker_vitals.tracebacks(job.workers) if found not in logged]
        if new and not problem:
            problem = f"a worker logged a traceback: {new[0]}"
        now = worker_vitals.process_ids(job.workers)
        return AttackOutcome(
            attack=attack,
            problem=problem,
            counted=counted,
            steps_lost_seconds=lost,
            worker_exits=sum(now.get(name) != pid for name, pid in self._processes.items()),
            peaks=peaks(self._memory, worker_vitals.memory(job.workers)),
        )

    @property
    def _step(self) -> int:
        return self._job.job.operator.last.progress.step

    async def _attack(self, attack: Attack) -> str:
        try:
            async with asyncio.timeout(attack.seconds):
                await attack.run(self._job)
        except NotRefusedError as error:
            return str(error)
        except TimeoutError:
            return f"it was not over within {attack.seconds:g} s"
        return ""

    async def _problem_after(self) -> str:
        """Why the job does not go on as before; empty if it does."""
        job, goal = self._job.job, self._step + STEPS_AFTER

        def goes_on(snapshot: JobSnapshot) -> bool:
            return snapshot.progress.step >= goal and in_sync(snapshot, *job.rollouts)

        try:
            await job.operator.until(goes_on, seconds=RECOVERY_SECONDS)
            await compare_served_weights(self._job, seconds=COMPARE_SECONDS)
        except NotRefusedError as error:
            return str(error)
        except AssertionError:
            return f"no {STEPS_AFTER} steps with all rollouts within {RECOVERY_SECONDS:g} s"
        return ""

    async def _counted(self, attack: Attack, before: dict[str, float]) -> float:
        deadline = time.monotonic() + COUNT_SECONDS
        while True:
            try:
                found = grown(before, await self._job.refusals(), attack.counted)
            except NotRefusedError:
                return 0.0
            if found or not attack.counted or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.1)
