"""The soak: four rollouts, one of which lies, faults by plan, a calm, and what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from typing import TYPE_CHECKING, Any

from hack.attacks.attack import NotRefusedError
from hack.attacks.compare_weights import compare_served_weights
from hack.attacks.target import AttackedJob
from hack.attacks.worker_vitals import tracebacks
from hack.liar.liar_slot import LiarSlot, SharedRoster
from hack.liar.verdict import LEARNED, LiarHistory, figures, violations
from hack.soak.fault_plan import FaultKind
from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.wire.job_snapshot import UNTRUSTED
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import FAST, LocalJob, in_sync
from tests.unit.rollcall_runtime.jobs import job_config

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from hack.soak.fault_plan import PlannedFault
    from tests.process.pods import Pod

ROLLOUTS = 4
FAULTS = (
    FaultKind.KILL_ROLLOUT,
    FaultKind.STOP_ROLLOUT,
    FaultKind.DELETE_ROLLOUT,
    FaultKind.KILL_TRAINER,
)
EXIT_SECONDS, BACK_SECONDS, CALM_SECONDS, COMPARE_SECONDS = 20.0, 120.0, 120.0, 60.0


def soaked_job(folder: Path) -> LocalJob:
    """A job that does not end, with checkpoints, so that its trainer may be killed."""
    config = job_config(
        algorithm={"max_steps": 1_000_000},
        membership=FAST,
        weight_sync={"engine": "gloo"},
        checkpoint=CheckpointConfig(20, str(folder / "saved")),
        tls=True,
    )
    return LocalJob(folder, config)


def trained_steps(job: LocalJob) -> list[dict[str, float]]:
    """The figures of all steps, in all lives of the trainer."""
    texts = [log.read_text(errors="replace") for log in job.trainer.logs]
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line[-1:] == "}"]
    return [line["figures"] for line in lines if line["message"].startswith("step ")]


class LiarSoak:
    """One run. `say` prints progress."""

    def __init__(self, job: LocalJob, *, seed: int, say: Callable[[str], None]) -> None:
        self._job, self._seed, self._say = job, seed, say
        self._roster = SharedRoster(job)
        self._slot = LiarSlot(self._roster, seed=seed, ask=self._ask)
        self._honest: list[Pod] = []
        self._ever: list[Pod] = []  # honest rollouts, those that were deleted too
        self._busy: set[str] = set()  # names of pods with a fault under way
        self._tasks: set[asyncio.Task[None]] = set()
        self._skipped = 0

    async def run(self, plan: Sequence[PlannedFault], seconds: float) -> dict[str, Any]:
        """Carry out the plan beside the liar; what is to be printed."""
        await self._job.train(rollouts=ROLLOUTS - 1)
        self._honest, self._ever = list(self._job.rollouts), list(self._job.rollouts)
        began, first = time.monotonic(), self._job.operator.last.progress.step
        lying = asyncio.create_task(self._slot.run())
        for fault in plan:
            await asyncio.sleep(max(0.0, fault.at - (time.monotonic() - began)))
            self._spawn(fault)
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))
        steps, took = self._job.operator.last.progress.step - first, time.monotonic() - began
        lying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await lying
        await asyncio.gather(*self._tasks)
        history = await self._history()
        return {
            **figures(history),
            "steps": steps,
            "seconds": round(took, 1),
            "faults": len(plan) - self._skipped,
            "violations": violations(history),
        }

    async def _history(self) -> LiarHistory:
        job, operator = self._job, self._job.operator
        self._say("calm: no more faults, no liar")
        with contextlib.suppress(AssertionError):  # the verdict says so
            await operator.until(lambda s: in_sync(s, *self._honest), seconds=CALM_SECONDS)
        rewards = {pod.name: await self._final_reward(pod) for pod in self._honest}
        problem = ""
        try:
            attacked = AttackedJob(job, seed=self._seed)
            await compare_served_weights(attacked, seconds=COMPARE_SECONDS)
        except NotRefusedError as error:
            problem = str(error)
        uids = {pod.uid for pod in self._ever}
        distrusted = {
            member.pod
            for seen in operator.history
            for member in seen.snapshot.members
            if member.pod_uid in uids and member.cause in UNTRUSTED
        }
        steps = trained_steps(job)
        return LiarHistory(
            lives=self._slot.lives,
            rewards=rewards,
            trained=(
                min(step["reward/min"] for step in steps),
                max(step["reward/max"] for step in steps),
            ),
            distrusted=sorted(distrusted),
            balanced=(await job.prompts()).balanced,
            weights_problem=problem,
            tracebacks=tracebacks((*self._ever, self._job.trainer)),
        )

    async def _final_reward(self, pod: Pod) -> float:
        """Its reward once it is high enough, or what it is when the time is over."""
        try:
            found = await pod.reaches("rollout_reward", LEARNED, seconds=CALM_SECONDS)
        except AssertionError:
            found = await pod.metrics()
        return found["rollout_reward"]

    # --- faults ----------------------------------------------------------------------------------

    def _ask(self) -> None:
        """A rollout that starts again is a newcomer."""
        victim = self._victim(0.0)
        if victim is not None:
            self._keep(self._kill(victim))

    def _spawn(self, fault: PlannedFault) -> None:
        if fault.kind is FaultKind.KILL_TRAINER:
            self._say(f"fault {fault.number}: {fault.kind}")
            self._keep(self._kill_trainer())
            return
        victim = self._victim(fault.pick)
        if victim is None:
            self._skipped += 1
            return
        self._say(f"fault {fault.number}: {fault.kind} {victim.name}")
        if fault.kind is FaultKind.STOP_ROLLOUT:
            self._keep(self._stop(victim, fault.lasts))
        elif fault.kind is FaultKind.DELETE_ROLLOUT:
            self._keep(self._delete(victim))
        else:
            self._keep(self._kill(victim))

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(asyncio.create_task(work))

    def _victim(self, pick: float) -> Pod | None:
        free = [pod for pod in self._honest if pod.name not in self._busy and pod.running]
        return free[int(pick * len(free))] if free else None

    async def _kill(self, pod: Pod) -> None:
        """Its container starts again in the same pod."""
        with self._fault_of(pod):
            pod.send(signal.SIGKILL)
            await pod.exited(seconds=EXIT_SECONDS)
            await pod.start()

    async def _stop(self, pod: Pod, seconds: float) -> None:
        with self._fault_of(pod):
            pod.send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            pod.send(signal.SIGCONT)

    async def _delete(self, pod: Pod) -> None:
        """Another pod takes its place."""
        with self._fault_of(pod):
            pod.send(signal.SIGKILL)
            await pod.exited(seconds=EXIT_SECONDS)
            self._honest.remove(pod)
            self._job.rollouts.remove(pod)
            new = await self._job.launch()
            self._honest.append(new)
            self._ever.append(new)
            await self._roster.push(EpochCause.MEMBER_LOST)

    async def _kill_trainer(self) -> None:
        trainer, at = self._job.trainer, time.time()
        async with self._roster.lock:  # a roster is pushed to a trainer that runs
            boot = self._job.operator.last.boot
            trainer.send(signal.SIGKILL)
            await trainer.exited(seconds=EXIT_SECONDS)
            await trainer.start()
        await self._job.operator.until(lambda s: s.boot > boot, seconds=BACK_SECONDS)
        self._roster.trainer_down.append((at, time.time()))

    @contextlib.contextmanager
    def _fault_of(self, pod: Pod) -> Iterator[None]:
        self._busy.add(pod.name)
        try:
            yield
        finally:
            self._busy.discard(pod.name)
