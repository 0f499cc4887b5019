"""A job whose trainer is the test itself, by the library `rollcall`."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from rollcall import ResponseGroup, Rollout, RolloutEvent, Trainer
from rollcall_protocol.job_config import EngineRef, JobConfig
from rollcall_protocol.wire.roster import EpochCause
from rollcall_runtime.coordinator import persistent_state
from rollcall_runtime.models.open_model import open_model
from tests.process.harness import FAST, STEP_SECONDS, LocalJob
from tests.process.held_weights import weights_of
from tests.process.pods import Pod
from tests.process.ticket_giver import TicketGiver
from tests.unit.rollcall_runtime.jobs import external_job_config

T = TypeVar("T")
Weights = dict[str, torch.Tensor]
PROMPTS = [[0, 3, 4, 5, 6, 7, 1], [0, 7, 6, 5, 4, 3, 1]]


async def in_thread(function: Callable[..., T], *arguments: Any, **more: Any) -> T:
    """What a function that waits returns; TimeoutError after STEP_SECONDS."""
    async with asyncio.timeout(STEP_SECONDS):
        return await asyncio.to_thread(function, *arguments, **more)


def random_weights(model: torch.nn.Module, seed: int) -> Weights:
    """Other weights for each seed."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=generator) * 0.1
        for name, tensor in model.named_parameters()
    }


def worst_logprob(
    model: torch.nn.Module, groups: Sequence[ResponseGroup], weights: Weights
) -> float:
    """The largest difference of a sampled token's log-probability from that of `weights`."""
    model.load_state_dict(weights, strict=False)
    rows = [(group.prompt, sample) for group in groups for sample in group.samples]
    whole = [torch.tensor([*prompt, *sample.tokens]) for prompt, sample in rows]
    padded = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
    with torch.no_grad():  # what is behind a token does not count
        logprobs = model(padded).float().log_softmax(-1)
    worst = 0.0
    for row, (prompt, sample) in zip(logprobs, rows, strict=True):
        at = range(len(prompt) - 1, len(prompt) - 1 + len(sample.tokens))
        own = row[list(at), list(sample.tokens)]
        worst = max(worst, (own - torch.tensor(sample.logprobs)).abs().max().item())
    return worst


class ExternalJob:
    """The trainer `rollcall` of a job, in this process; `job` has its rollouts.

    These first import the module `imports`, and have `variables` of their own.
    """

    def __init__(self, job: LocalJob, *, imports: str, variables: dict[str, str]) -> None:
        self.job, self._imports, self._variables = job, imports, variables
        self.rollcall: Trainer
        self.reported: list[RolloutEvent] = []
        self.joined: list[Rollout] = []
        self.model = open_model(job.config.model).build()

    async def open(self) -> None:
        """Start the coordinator's process, as a trainer does in its first line."""
        self.rollcall = await self.call(Trainer, self.job.trainer.variables)

    async def call(self, function: Callable[..., T], *arguments: Any, **more: Any) -> T:
        """What a function of the library returns, in a thread, since all of them wait."""
        return await in_thread(function, *arguments, **more)

    def weights(self, seed: int) -> Weights:
        """Other weights of the model for each seed."""
        return random_weights(self.model, seed)

    def worst_logprob(self, groups: Sequence[ResponseGroup], weights: Weights) -> float:
        """The largest difference of a sampled token's log-probability from the model's own."""
        return worst_logprob(self.model, groups, weights)

    async def add(self) -> Pod:
        """Another rollout, on the roster."""
        pod = await self.launch()
        await self.job.push_roster(EpochCause.MEMBERS_JOINED)
        return pod

    async def launch(self) -> Pod:
        """Another rollout."""
        return await self.job.launch(imports=self._imports, **self._variables)

    async def join(
        self, *, apply: Callable[[int, Mapping[str, torch.Tensor]], object] | None = None
    ) -> tuple[Pod, Rollout]:
        """Another rollout, on the roster: this process itself, by the library."""
        pod = self.job.place()
        await self.job.push_roster(EpochCause.MEMBERS_JOINED)
        rollout = await self.call(Rollout.join, environment=pod.variables, apply=apply)
        self.joined.append(rollout)
        return pod, rollout

    async def kill(self, pod: Pod) -> None:
        """End a rollout without a word, and take it off the list of those that there are."""
        pod.send(signal.SIGKILL)
        await pod.exited(seconds=10)
        self.job.rollouts.remove(pod)

    async def happened(self, kind: str, *pods: Pod, seconds: float = 30) -> None:
        """Wait until `events` has named each of `pods` with this kind; forget that it has."""
        awaited = {(kind, pod.name) for pod in pods}
        async with asyncio.timeout(seconds):
            while not awaited <= {(event.kind, event.pod) for event in self.reported}:
                await asyncio.sleep(0.02)
                self.reported += self.rollcall.events()
        self.reported = [event for event in self.reported if (event.kind, event.pod) not in awaited]

    async def held(self, *, version: int) -> list[Weights]:
        """End the coordinator, and read the weights that each rollout serves; all of `version`."""
        snapshot = self.job.operator.last
        session = snapshot.session
        assert session is not None
        await self.call(self.rollcall.close)
        lineage = (await self._lineages())[-1]
        async with TicketGiver(self.job.trainer.address) as keys:
            found = [await weights_of(pod, lineage, keys) for pod in self.job.rollouts]
        assert [each.number for each, _, _ in found] == [version] * len(found)
        return [tensors for _, _, tensors in found]

    async def _lineages(self) -> list[Any]:
        folder = Path(self.job.trainer.variables["ROLLCALL_STATE_DIR"])
        state = persistent_state.load_and_count_boot(folder, self.job.trainer.uid)
        return [incarnation.lineage for incarnation in state.incarnations]


def program_job(
    folder: Path,
    model: str,
    *command: str,
    sync: dict[str, Any] | None = None,
    max_tokens: int = 8,
) -> LocalJob:
    """A job whose trainer is a Python program, with rollouts that generate by transformers."""
    config = external_job_config(membership=FAST, model=model, weight_sync=sync)
    engine = EngineRef("transformers", {"maxTokens": max_tokens})
    job = LocalJob(folder, config, rollout_engine=engine)
    job.trainer.command = [sys.executable, *command]
    return job


@asynccontextmanager
async def external_job(
    folder: Path,
    *,
    rollouts: int = 2,
    config: JobConfig | None = None,
    engine: EngineRef | None = None,
    imports: str = "",
    variables: dict[str, str] | None = None,
) -> AsyncIterator[ExternalJob]:
    """A job with rollouts on its roster, and an open trainer."""
    async with LocalJob(
        folder, config or external_job_config(membership=FAST), rollout_engine=engine
    ) as job:
        made = ExternalJob(job, imports=imports, variables=variables or {})
        for _ in range(rollouts):
            await made.launch()
        await made.open()
        try:
            job.operator.start()
            await job.push_roster(EpochCause.JOB_STARTED)
            yield made
        finally:
            for rollout in made.joined:
                await made.call(rollout.close)
            await made.call(made.rollcall.close)
