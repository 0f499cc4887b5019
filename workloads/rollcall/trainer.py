"""A trainer's side of the job: weights out to the rollouts, samples in from them."""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from rollcall.asked_responses import AskedResponses
from rollcall.child_process import job_environment
from rollcall.coordinator_process import CoordinatorProcess
from rollcall.errors import RollcallError
from rollcall.program_end import ProgramEnd
from rollcall.results import Outcome, RolloutEvent
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.external_trainer import (
    FinishTraining,
    MetricValues,
    Published,
    PublishPart,
    PublishWeights,
    ReadMetrics,
    ReportProgress,
    TakeMembers,
    TrainingIsOver,
    WeightsWithdrawn,
    WithdrawWeights,
)
from rollcall_protocol.wire.ids import check_counts
from rollcall_protocol.wire.json_codec import decode, encode
from rollcall_protocol.wire.library_link import Done
from rollcall_protocol.wire.roster import EpochCause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from rollcall.own_job import OwnJob
    from rollcall.results import ResponseGroup
    from rollcall.sending_ranks import SendingRanks
    from rollcall.weights import NamedTensors, Written
    from rollcall_protocol.wire.roster import RosterMember

log = logging.getLogger(__name__)

_PLACE = (
    "trainer of a job; run the program in an RLJob with trainer.kind: External, such as by "
    "`rollcall local run`, or begin with Trainer.without_operator"
)


class Trainer:
    """The trainer of the job that this process runs in.

    All methods may be called in any thread, `publish` in one at a time. RollcallError says where,
    what is wrong, and what to do. A context manager, which ends the coordinator's process; without
    `finish` or `finish_at_exit` the operator takes the end of the program for a failure, and
    restarts it.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        every_rank_sends: bool = False,
        own_job: OwnJob | None = None,
    ) -> None:
        """Start the coordinator, and wait until it listens; rollouts need not be there yet.

        With `every_rank_sends` all ranks of torch.distributed call this and `publish`, and each
        sends what it holds of the weights; rank 0 has the coordinator, and makes the other calls.

        In a container that was started again after `finish`, this stays as `stay` does.

        The variables that the operator wrote are taken from `environment`, by default the process'.
        `own_job` is that of `without_operator`.
        """
        from rollcall.weights import WeightsWriter  # noqa: PLC0415 - imports torch

        given = os.environ if environment is None else environment
        if own_job is not None:
            given = {**given, **own_job.trainer()}
        variables = job_environment(given, pod_contract.CONFIG, who="Trainer", place=_PLACE)
        self._job = own_job
        self._ranks = _sending_ranks() if every_rank_sends else None
        self._weights = WeightsWriter(self._ranks)
        self._publishing = threading.Lock()
        self._closed = self._finished = False
        self._last_step: int | None = None  # of `finish_at_exit`
        self._ending: ProgramEnd | None = None
        place = () if self._ranks is None else self._ranks.place
        weights = self._weights.descriptor
        self._process = CoordinatorProcess(variables, weights=weights, place=place)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @classmethod
    def without_operator(
        cls,
        folder: str | os.PathLike[str],
        *,
        address: str,
        port: int = 0,
        model: str,
        engine: str = "auto",
        engine_config: Mapping[str, Any] | None = None,
        min_rollouts: int = 1,
    ) -> Self:
        """A trainer of a job outside of Kubernetes, whose rollouts it admits itself.

        `folder` keeps the job's names and keys: a trainer that is started again with it finds its
        rollouts. `address` is this machine's own, where rollouts reach it, and `port` the one to
        listen at: 0 takes a free one, and keeps it. `model`: what the rollouts load. The others are
        `weightSync.engine.name` and `config`, and `membership.minRollouts` of an RLJob.
        """
        from rollcall.own_job import OwnJob  # noqa: PLC0415 - imports cryptography
        from rollcall.own_job_settings import OwnJobSettings  # noqa: PLC0415

        settings = OwnJobSettings(
            address, model, engine, engine_config or {}, min_rollouts, port=port
        )
        return cls(own_job=OwnJob(Path(folder), settings))

    def admit(
        self,
        name: str,
        address: str,
        *,
        engine: str = "transformers",
        config: Mapping[str, Any] | None = None,
    ) -> dict[str, str]:
        """Let a rollout belong to the job; returns the variables of its process' environment.

        For a trainer `without_operator`. The process is `rollcall-rollout` with this inference
        `engine` and its `config`, or a program that calls `Rollout.join`, on the machine that has
        `address`. Its token lies in the folder that ROLLCALL_TOKEN_DIR names: copy that folder to
        the other machine. The token holds for 30 days; this call makes another.
        """
        job = self._own_job("admit")
        before = job.members
        variables = job.admit(name, address, engine=engine, config=config or {})
        if job.members != before:
            self._take(job.members, EpochCause.MEMBERS_JOINED)
        return variables

    def remove(self, name: str) -> None:
        """A rollout that was admitted belongs to the job no more; end its process."""
        job = self._own_job("remove")
        job.remove(name)
        self._take(job.members, EpochCause.SCALED_DOWN)

    @property
    def coordinator_pid(self) -> int:
        """The process of the job's coordinator, a child of this one."""
        return self._process.pid

    def publish(self, tensors: NamedTensors, step: int | None = None) -> Outcome:
        """Bring weights to all rollouts: they are copied, sent, and served when this returns.

        `tensors`: all weights of the model that the rollouts serve, by the names of its files; on
        any device, with any strides, the same ones each time. Pairs are taken one by one. `step` is
        the caller's own count, for people to read: it may repeat or go back, and is not
        below 0 (ValueError).

        While there are fewer than `minRollouts`, this waits, however long that takes. A rollout
        that fails meanwhile is left out, with a warning in the log. If this raises, rollouts serve
        what they served before.

        Where every rank sends, a DTensor leaves by its rows, and of a tensor that is whole in all
        ranks one sends it; what one rank raises, all raise, and all return the same outcome.
        """
        if not self._publishing.acquire(blocking=False):
            raise RollcallError(
                "publish: the call before has not returned; publish in one thread at a time"
            )
        began = time.monotonic()
        try:
            if self._ranks is None:
                self._withdraw()
                done = self._send(self._weights.write(tensors), step)
            else:
                done = self._send_parts(self._ranks, tensors, step)
        finally:
            self._publishing.release()
        seconds = time.monotonic() - began
        if self._is_first:
            for pod, why in done.left_out.items():
                log.warning("version %d was published without %s: %s", done.version, pod, why)
        return Outcome(done.version, done.members, done.left_out, seconds)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int = 1,
        *,
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = 0,
        stop: str | Sequence[str] | None = (),
        stop_token_ids: Sequence[int] | None = (),
        seed: int | None = None,
        timeout: float | None = None,
    ) -> list[ResponseGroup]:
        """`n` responses to each of `prompts`, lists of token ids, in their order.

        What a rollout that is lost has sampled is continued by another; while there is none, this
        waits. Without `max_tokens` the inference engine's own bound holds; `top_k` 0 is no bound;
        `stop` is one text or several; temperature below 0.01 takes the likeliest token. The same
        `seed` gives the same responses from the same weights as far as the inference engine
        computes the same. TimeoutError after `timeout` seconds.
        """
        asked = AskedResponses(
            prompts,
            n,
            seed=seed,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop=stop,
            stop_token_ids=stop_token_ids,
        )
        self._expect_first("generate")
        self._process.ask(asked.message, Done, timeout=timeout, pieces=asked.take)
        return asked.groups()

    async def publish_async(self, tensors: NamedTensors, step: int | None = None) -> Outcome:
        """As `publish`, in a thread; the tensors must not change before it returns."""
        return await asyncio.to_thread(self.publish, tensors, step)

    async def generate_async(
        self,
        prompts: Sequence[Sequence[int]],
        n: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as `generate` has it
        **sampling: Any,
    ) -> list[ResponseGroup]:
        """As `generate`, for any number of callers at once."""
        asked = AskedResponses(prompts, n, **sampling)
        self._expect_first("generate")
        async with asyncio.timeout(timeout):
            await self._process.ask_async(asked.message, Done, pieces=asked.take)
        return asked.groups()

    def events(self) -> list[RolloutEvent]:
        """What happened to rollouts since the last call, oldest first; of the last 10,000."""
        found = []
        while self._process.events:
            change = self._process.events.popleft()
            found.append(
                RolloutEvent(change.kind, change.pod, change.time, change.version, change.cause)
            )
        return found

    def metrics(self) -> Mapping[str, float]:
        """The coordinator's figures now, by the names that Prometheus has for them."""
        self._expect_first("metrics")
        return self._process.ask(ReadMetrics, MetricValues).values

    def report(
        self,
        step: int,
        *,
        reward: float | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Have the job's status say that `step` is done, with the mean `reward` of its samples.

        `figures`, such as "actor/pg_loss", go into its history, of which reports are made.
        """
        self._expect_first("report")
        kept = dict(figures or {})
        for name, value in [("reward", reward), *kept.items()]:
            if value is not None and not math.isfinite(value):
                raise RollcallError(f"report: {name} is {value}; leave out what is not a number")
        self._process.ask(lambda number: ReportProgress(number, step, reward, kept), Done)

    def finish(self, step: int) -> None:
        """Training is over after `step`: the job has succeeded. Returns when the operator knows.

        At its end the program then stays, as `stay` says. Where every rank sends, all call it.
        """
        has_operator = self._job is None
        if self._is_first:
            self._process.ask(lambda number: FinishTraining(number, step, has_operator), Done)
        self._finished = True
        if has_operator:
            atexit.register(self.stay)

    def finish_at_exit(self, step: int) -> None:
        """When the program ends without an error: `finish(step)`. What follows is part of the job.

        A later call is for a later step. An error is an exception, or what `sys.exit` was given.
        """
        check_counts(step=step)
        if self._last_step is None:
            self._ending = ProgramEnd()
            atexit.register(self._exit)
        self._last_step = step

    def stay(self) -> None:
        """After `finish`: wait until the pod is deleted, or the process ended by a signal.

        If it ended by itself, its container would be started again, and it would train again.
        Without an operator this does nothing.
        """
        if not self._closed and self._job is None:
            self._process.wait_for_end()

    def close(self) -> None:
        """End the coordinator's process; rollouts then wait for another. Harmless twice."""
        if not self._closed:
            self._closed = True
            self._process.close()
            self._weights.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ends_later = self._last_step is not None and kind is None
        if not self._finished and not ends_later:
            self.close()

    def _withdraw(self) -> int:
        return self._process.ask(WithdrawWeights, WeightsWithdrawn).number

    def _send(self, written: Written, step: int | None) -> Published:
        return self._process.ask(lambda number: PublishWeights(number, step, *written), Published)

    def _send_parts(
        self, ranks: SendingRanks, tensors: NamedTensors, step: int | None
    ) -> Published:
        """Rank 0 publishes once all parts are ready: it never waits for a rank that has failed."""
        first = ranks.rank == 0
        # Rank 0 knows when no rollout needs the former weights.
        number = ranks.together("publish", lambda: self._withdraw() if first else 0)[0]
        written: list[Written] = []

        def prepare() -> None:
            if not first:
                self._withdraw()
            written.append(self._weights.write(tensors))
            if not first:
                self._process.ask(lambda asked: PublishPart(asked, number, *written[0]), Done)

        ranks.together("publish", prepare)
        done = ranks.together("publish", lambda: first and encode(self._send(written[0], step)))
        return decode(Published, done[0])

    def _begin(self) -> None:
        ranks = self._ranks
        over = ranks.together("Trainer", self._started)[0] if ranks else self._started()
        if over is not None:
            self.stay()
            again = "take another folder" if self._job else "delete and recreate the RLJob"
            raise RollcallError(
                f"Trainer: the job is over since step {over}; {again} to train again"
            )
        if self._job is not None:
            self._take(self._job.members, EpochCause.JOB_STARTED)

    def _started(self) -> int | None:
        """Wait until the process is ready; returns the step after which the job is over, if so."""
        first = self._process.wait_until_ready()
        if isinstance(first, TrainingIsOver):
            return first.step
        self._weights.write_float32_as(first.float32_as)
        if self._job is not None:
            self._job.listens_at(first.port)
        return None

    @property
    def _is_first(self) -> bool:
        return self._ranks is None or self._ranks.rank == 0

    def _expect_first(self, call: str) -> None:
        if self._ranks is not None and self._ranks.rank > 0:
            raise RollcallError(
                f"{call}: this is rank {self._ranks.rank} of the trainer; rank 0 speaks for all: "
                "call it there"
            )

    def _own_job(self, call: str) -> OwnJob:
        if self._job is None:
            raise RollcallError(
                f"{call}: the operator says which rollouts belong to this job; scale its pools, or "
                "begin with Trainer.without_operator"
            )
        return self._job

    def _take(self, members: tuple[RosterMember, ...], cause: EpochCause) -> None:
        self._process.ask(lambda number: TakeMembers(number, members, cause), Done)

    def _exit(self) -> None:
        if self._last_step is None or self._ending is None or self._ending.failed:
            self.close()
            return
        if self._closed:
            log.warning(
                "the Trainer was closed after training, so the job has not succeeded by it, and is "
                "started again unless another has finished; leave close() out"
            )
            return
        self.finish(self._last_step)
        self.stay()


def _sending_ranks() -> SendingRanks:
    from rollcall.sending_ranks import SendingRanks  # noqa: PLC0415 - imports torch

    return SendingRanks()


def finite(value: object) -> float | None:
    """For `report`: None for what is no finite number, such as NaN in a step without gradients."""
    found = isinstance(value, (int, float)) and math.isfinite(value)
    return float(cast("float", value)) if found else None
