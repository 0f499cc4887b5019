"""Jobs of processes with vLLM: their trainer is killed, their pool ends and comes back."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rollcall_plugins.inference.vllm.server import choices
from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.wire.ids import Lineage
from rollcall_protocol.wire.roster import EpochCause
from rollcall_runtime.rollout.engines.server.client import ServerClient
from rollcall_runtime.sync.errors import CatchUpError
from tests.plugins.inference.vllm.inside import held_sender
from tests.plugins.inference.vllm.inside.left_behind import left, processes, shared_memory
from tests.plugins.inference.vllm.inside.test_job import START_SECONDS, job_of
from tests.process.harness import in_sync
from tests.process.held_weights import weights_of
from tests.process.ticket_giver import TicketGiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rollcall_protocol.wire.ids import Version
    from tests.process.harness import LocalJob
    from tests.process.pods import Pod

PROMPTS = ((3, 4, 5, 6, 7), (9, 8, 7, 6, 5), (5, 5, 3, 3, 4))
TOKENS = 5
IDLE_SECONDS = 30.0
STEP_SECONDS = 60.0
GONE_SECONDS = 30.0
SETTLED_SECONDS = 60.0
CLOSE = 1e-4  # of log-probabilities: vLLM's kernels add up in another order

Answers = list[tuple[list[int], list[float], set[str]]]  # tokens, log-probabilities, versions


async def answers(folder: Path) -> Answers:
    """What the vLLM below `folder` says when it has nothing else to do, so bit by bit the same."""
    (socket,) = folder.glob("rollcall-vllm-*/vllm.sock")
    client = ServerClient(socket=socket)
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            while await _busy(client):
                await asyncio.sleep(0.2)
        return [await _answer(client, prompt) for prompt in PROMPTS]
    finally:
        await client.close()


async def _busy(client: ServerClient) -> bool:
    text = (await client.get("/metrics", seconds=10)).decode()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    lines = [line for line in text.splitlines() if line.startswith(names)]
    assert len(lines) == 2
    return any(float(line.rsplit(" ", 1)[1]) for line in lines)


async def _answer(
    client: ServerClient, prompt: tuple[int, ...]
) -> tuple[list[int], list[float], set[str]]:
    sampling = {"max_tokens": TOKENS, "seed": 3, "logprobs": 0, "detokenize": False}
    body = {"token_ids": prompt, "sampling_params": sampling, "stream": True}
    tokens: list[int] = []
    logprobs: list[float] = []
    versions: set[str] = set()
    async with aclosing(choices(client, body)) as made:
        async for choice in made:
            tokens += choice["token_ids"] or ()
            logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {})["content"]]
            versions |= {span["version"] for span in choice.get("weight_versions") or ()}
    return tokens, logprobs, versions


def versions(found: Answers) -> set[str]:
    """Those that sampled the tokens, as vLLM says."""
    return {name for *_, names in found for name in names}


@torch.no_grad()
def plain_logprobs(folder: Path, weights: dict[str, Tensor], found: Answers) -> list[list[float]]:
    """What transformers says of these answers, with these weights of the model in `folder`."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    problems = model.load_state_dict(weights, strict=False)
    assert not problems.unexpected_keys
    rows = []
    for prompt, (tokens, _, _) in zip(PROMPTS, found, strict=True):
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].log_softmax(-1)
        first = len(prompt) - 1
        rows.append([float(logits[first + at, token]) for at, token in enumerate(tokens)])
    return rows


@pytest.fixture
def folder() -> Iterator[Path]:
    """Its path is short, since sockets lie below it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def launched(job: LocalJob, folder: Path) -> Pod:
    """A rollout whose temporary files lie in `folder`, which is made."""
    folder.mkdir()
    return await job.launch(TMPDIR=str(folder))


async def settled(
    rollout: Pod, folder: Path, keys: TicketGiver
) -> tuple[Version, dict[str, Tensor], Answers]:
    """The version, the weights and the answers of a rollout; again if it has just committed."""
    async with asyncio.timeout(SETTLED_SECONDS):
        while True:
            with suppress(CatchUpError):
                version, _, weights = await weights_of(rollout, Lineage(1, 1), keys)
                after = await answers(folder)
                if (await rollout.metrics())["weight_version"] == version.number:
                    return version, weights, after
            await asyncio.sleep(0.1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", ["stage", "commit"])
async def test_a_trainer_that_is_killed_in_a_publication_leaves_one_version_served(
    tmp_path: Path, folder: Path, moment: str
) -> None:
    saved = CheckpointConfig(1, str(tmp_path / "saved"))
    synced = {"bucket_bytes": 16 << 10, "config": {"operationBytes": 16 << 10}}
    async with job_of(tmp_path, checkpoint=saved, weight_sync=synced) as job:
        rollout = await launched(job, folder / "t")
        variables = {held_sender.AT: moment, held_sender.FOLDER: str(tmp_path)}
        job.trainer.imports = "tests.plugins.inference.vllm.inside.held_sender"
        job.trainer.variables.update(variables)
        await job.start(rollouts=0)
        async with asyncio.timeout(START_SECONDS):
            while not (tmp_path / "held").exists():
                await asyncio.sleep(0.05)
        before = await answers(folder / "t")
        if moment == "stage":
            job.trainer.send(signal.SIGKILL)
        (tmp_path / "go").touch()
        assert await job.trainer.exited(seconds=20) == -signal.SIGKILL
        async with TicketGiver(job.trainer.address) as keys:
            version, weights, after = await settled(rollout, folder / "t", keys)
        assert versions(after) == {str(version.number)}
        if moment == "stage" or versions(after) == versions(before):
            assert after == before
        for (_, logprobs, _), plain in zip(
            after, plain_logprobs(tmp_path / "model", weights, after), strict=True
        ):
            assert logprobs == pytest.approx(plain, abs=CLOSE)
        for name in variables:
            del job.trainer.variables[name]
        await job.trainer.start()
        await job.operator.until(
            lambda s: s.boot == 2 and in_sync(s, rollout), seconds=START_SECONDS
        )
        await job.steps(5, seconds=STEP_SECONDS)
        assert rollout.running
        assert len(rollout.logs) == 1, "it was not started again"
        assert (await job.prompts()).balanced


@pytest.mark.timeout(600)
async def test_a_pool_of_none_and_back_leaves_nothing_behind(tmp_path: Path, folder: Path) -> None:
    async with job_of(tmp_path) as job:
        first = await launched(job, folder / "t")
        await job.start(rollouts=0)
        await job.operator.until(lambda s: in_sync(s, first), seconds=START_SECONDS)
        await job.steps(3, seconds=STEP_SECONDS)
        shared = shared_memory(processes(folder / "t"))
        first.send(signal.SIGTERM)
        assert await first.exited(seconds=60) == 0
        assert not left(folder / "t", shared), "once it has ended"
        await job.push_roster(EpochCause.SCALED_DOWN, without=(first,))
        second = await launched(job, folder / "u")
        await job.push_roster(EpochCause.MEMBERS_JOINED, without=(first,))
        await job.operator.until(lambda s: in_sync(s, second), seconds=START_SECONDS)
        await job.steps(3, seconds=STEP_SECONDS)
        assert (await job.prompts()).balanced
        shared = shared_memory(processes(folder / "u"))
        second.send(signal.SIGKILL)
        await second.exited(seconds=20)
        async with asyncio.timeout(GONE_SECONDS):
            while left(folder / "u", shared):
                await asyncio.sleep(0.1)
