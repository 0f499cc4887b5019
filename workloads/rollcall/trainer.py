"""A trainer's side of the job: weights out to the rollouts, samples in from them."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING, Self

from rollcall.child_process import job_environment
from rollcall.coordinator_process import CoordinatorProcess
from rollcall.errors import RollcallError
from rollcall.results import Outcome, ResponseGroup, RolloutEvent, SampledResponse
from rollcall_protocol import pod_contract
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.external_trainer import (
    FinishTraining,
    Generated,
    GenerateResponses,
    MetricValues,
    Published,
    PublishWeights,
    ReadMetrics,
    ReportProgress,
    TrainingIsOver,
    WithdrawWeights,
)
from rollcall_protocol.wire.library_link import Done

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from rollcall.weights import NamedTensors

SEED_LIMIT = 2**63
_PLACE = (
    "trainer of a job; run the program in an RLJob with trainer.kind: External, such as by "
    "`rollcall local run`"
)
_LEAST_TEMPERATURE = 1e-5  # below it the likeliest token is taken


class Trainer:
    """The trainer of the job that this process runs in.

    All methods may be called in any thread, `publish` in one at a time. RollcallError says where,
    what is wrong, and what to do. A context manager, which ends the coordinator's process; without
    `finish` the operator takes the end of the program for a failure, and restarts it.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the coordinator, and wait until it listens; rollouts need not be there yet.

        In a container that was started again after `finish`, this stays as `stay` does.

        The variables that the operator wrote are taken from `environment`, by default the process'.
        """
        from rollcall.weights import WeightsWriter  # noqa: PLC0415 - imports torch

        variables = job_environment(
            os.environ if environment is None else environment,
            pod_contract.CONFIG,
            who="Trainer",
            place=_PLACE,
        )
        self._weights = WeightsWriter()
        self._publishing = threading.Lock()
        self._closed = self._finished = False
        self._process = CoordinatorProcess(variables, weights=self._weights.descriptor)
        try:
            ready = self._process.wait_until_ready()
        except BaseException:
            self.close()
            raise
        if isinstance(ready, TrainingIsOver):
            self.stay()
            raise RollcallError(
                f"Trainer: the job is over since step {ready.step}; delete and recreate the RLJob "
                "to train again"
            )
        self._weights.write_float32_as(ready.float32_as)

    @property
    def coordinator_pid(self) -> int:
        """The process of the job's coordinator, a child of this one."""
        return self._process.pid

    def publish(self, tensors: NamedTensors, step: int | None = None) -> Outcome:
        """Bring weights to all rollouts: they are copied, sent, and served when this returns.

        `tensors`: all weights of the model that the rollouts serve, by the names of its files; on
        any device, with any strides, the same ones each time. Pairs are taken one by one. `step` is
        the caller's own count, for people to read: it may repeat or go back.

        While there are fewer than `minRollouts`, this waits, however long that takes. A rollout
        that fails meanwhile is left out. If this raises, rollouts serve what they served before.
        """
        if not self._publishing.acquire(blocking=False):
            raise RollcallError(
                "publish: the call before has not returned; publish in one thread at a time"
            )
        began = time.monotonic()
        try:
            self._process.ask(WithdrawWeights, Done)
            specs, nbytes = self._weights.write(tensors)
            done = self._process.ask(
                lambda number: PublishWeights(number, step, specs, nbytes), Published
            )
        finally:
            self._publishing.release()
        seconds = time.monotonic() - began
        return Outcome(done.version, done.members, done.left_out, seconds)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int = 1,
        *,
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        seed: int | None = None,
        timeout: float | None = None,
    ) -> list[ResponseGroup]:
        """`n` responses to each of `prompts`, lists of token ids, in their order.

        What a rollout that is lost has sampled is continued by another; while there is none, this
        waits. Without `max_tokens` the inference engine's own bound holds; `top_k` 0 is no bound;
        temperature 0 takes the likeliest token. The same `seed` gives the same responses from the
        same weights as far as the inference engine computes the same. TimeoutError after `timeout`
        seconds.
        """
        asked = tuple(tuple(prompt) for prompt in prompts)
        if n < 1:
            raise RollcallError(f"generate: n is {n}; ask for 1 response or more")
        for number, prompt in enumerate(asked):
            if not prompt or not all(type(token) is int and token >= 0 for token in prompt):
                raise RollcallError(
                    f"generate: prompt {number} is not a list of token ids; tokenize it first"
                )
        if temperature < _LEAST_TEMPERATURE:
            temperature, top_p, top_k = 1.0, 1.0, 1
        try:
            sampling = SamplingConfig(
                max_tokens=max_tokens or 0,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                stop=tuple(stop),
                stop_token_ids=tuple(stop_token_ids),
            )
        except ValueError as error:
            raise RollcallError(f"generate: {error}") from error
        chosen = secrets.randbelow(SEED_LIMIT) if seed is None else seed % SEED_LIMIT
        found: list[list[SampledResponse | None]] = [[None] * n for _ in asked]

        def take(piece: Generated) -> None:
            made = piece.response
            sample = SampledResponse(made.tokens, made.logprobs, made.versions)
            found[piece.prompt][piece.sample] = sample

        self._process.ask(
            lambda number: GenerateResponses(number, asked, n, sampling, chosen),
            Done,
            timeout=timeout,
            pieces=take,
        )
        return [
            ResponseGroup(prompt, tuple(_there(sample) for sample in samples))
            for prompt, samples in zip(asked, found, strict=True)
        ]

    async def publish_async(self, tensors: NamedTensors, step: int | None = None) -> Outcome:
        """As `publish`, in a thread; the tensors must not change before it returns."""
        return await asyncio.to_thread(self.publish, tensors, step)

    async def generate_async(
        self, prompts: Sequence[Sequence[int]], n: int = 1, **sampling: object
    ) -> list[ResponseGroup]:
        """As `generate`, in a thread."""
        return await asyncio.to_thread(self.generate, prompts, n, **sampling)  # type: ignore[arg-type]

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
        kept = dict(figures or {})
        for name, value in [("reward", reward), *kept.items()]:
            if value is not None and not math.isfinite(value):
                raise RollcallError(f"report: {name} is {value}; leave out what is not a number")
        self._process.ask(lambda number: ReportProgress(number, step, reward, kept), Done)

    def finish(self, step: int) -> None:
        """Training is over after `step`: the job has succeeded. Returns when the operator knows.

        At its end the program then stays, as `stay` says.
        """
        self._process.ask(lambda number: FinishTraining(number, step), Done)
        self._finished = True
        atexit.register(self.stay)

    def stay(self) -> None:
        """After `finish`: wait until the pod is deleted, or the process ended by a signal.

        If it ended by itself, its container would be started again, and it would train again.
        """
        if not self._closed:
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
        if not self._finished:
            self.close()


def _there(sample: SampledResponse | None) -> SampledResponse:
    if sample is None:
        raise RollcallError("generate: the coordinator did not answer with all responses")
    return sample
