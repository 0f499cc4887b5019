"""Environments run beside the rollout: what one sample's does costs no other sample's its turns."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.job_config import EnvironmentConfig
from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.tokenizer import open_tokenizer
from rollcall_runtime.tasks.environments.environment_process import (
    EnvironmentFailedError,
    EnvironmentLostError,
    EnvironmentProcess,
)
from rollcall_runtime.tasks.environments.user_environment import Step
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_tiny_model

USERS = """\
import asyncio, os, sys, threading, time, weakref

class Counts:
    \"\"\"Observes how often it was called; -1 is a turn that does something else.\"\"\"
    def __init__(self, start=0, act=None):
        self.count, self.act = start, act
    def reset(self, row, seed):
        self.seed = seed
        return [row["first"]] if "first" in row else None
    def step(self, response):
        if response[0] == 9:
            return ACTS[self.act](self)
        self.count += len(response)
        return [self.count], 0.5, self.count >= 3

class Coroutines(Counts):
    async def step(self, response):
        await asyncio.sleep(0.01)
        return Counts.step(self, response)

def forks(env):
    if os.fork() == 0:
        return [99], 0.0, True
    return [5], 0.0, True

ACTS = {
    "raises": lambda env: {}["sum"],
    "exits": lambda env: sys.exit(3),
    "ends": lambda env: os._exit(4),
    "hangs": lambda env: time.sleep(60),
    "forks": forks,
    "short": lambda env: ([5], 1.0),
    "text reward": lambda env: ([5], "one", True),
    "nan": lambda env: ([5], float("nan"), True),
    "nothing": lambda env: (None, 0.0, False),
    "object": lambda env: (object(), 0.0, False),
    "no json": lambda env: ([{"role": "tool", "content": {1, 2}}], 0.0, False),
    "mixed": lambda env: ([5, "five"], 0.0, False),
    "long": lambda env: ("x" * 2**20, 0.0, True),
    "process": lambda env: ([os.getpid()], 0.0, True),
    "waits": lambda env: (time.sleep(0.2), ([5], 0.0, True))[1],
}

class Live(Counts):
    \"\"\"Observes how many environments there are.\"\"\"
    all = weakref.WeakSet()
    def __init__(self):
        super().__init__()
        Live.all.add(self)
    def reset(self):
        return [len(Live.all)]

class Reads:
    def reset(self, prompt_text):
        self.prompt = prompt_text
    def step(self, response_text):
        return f"{self.prompt} {response_text}", 0.0, False

class NoStep:
    def reset(self): pass
class OddParameter:
    def reset(self): pass
    def step(self, answer): pass
class WantsText:
    def reset(self): pass
    def step(self, response_text): pass
class Fails:
    def __init__(self): raise OSError("no board")
"""


@pytest.fixture(autouse=True)
def _users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_games.py").write_text(USERS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@asynccontextmanager
async def environments(
    name: str = "Counts", *, seconds: float = 20.0, **config: Any
) -> AsyncIterator[EnvironmentProcess]:
    settings = EnvironmentConfig(f"users_games:{name}", config=config, step_seconds=seconds)
    process = EnvironmentProcess(settings, directory=None, free=lambda: None)
    try:
        await process.start()
        yield process
    finally:
        await process.close()


async def begin(process: EnvironmentProcess, sample: int, **row: Any) -> Step:
    return await process.reset(sample, prompt=(0, 1), row=row, seed=7)


async def failure(process: EnvironmentProcess, sample: int = 1) -> EnvironmentFailedError:
    await begin(process, sample)
    with pytest.raises(EnvironmentFailedError) as failed:
        await process.step(sample, (9,))
    return failed.value


@pytest.mark.parametrize("name", ["Counts", "Coroutines"])
async def test_each_sample_has_an_environment_of_its_own(name: str) -> None:
    async with environments(name, start=1) as process:
        assert await begin(process, 1) == Step(None)
        assert await begin(process, 2, first=4) == Step([4])
        assert await process.step(1, (5,)) == Step([2], 0.5)
        assert await process.step(2, (5, 5)) == Step([3], 0.5, done=True)
        assert await process.step(1, (5,)) == Step([3], 0.5, done=True)


async def test_reset_gives_a_sample_another_environment() -> None:
    async with environments() as process:
        for _ in range(2):
            await begin(process, 1)
            assert (await process.step(1, (5, 5))).observation == [2]


async def test_calls_of_several_samples_run_at_once() -> None:
    async with environments(act="waits") as process:
        for sample in range(20):
            await begin(process, sample)
        began = time.monotonic()
        await asyncio.gather(*(process.step(sample, (9,)) for sample in range(20)))
        assert time.monotonic() - began < 2.0, "20 calls of 0.2 s"


@pytest.mark.parametrize(
    ("act", "kind", "value"),
    [
        ("raises", RewardErrorKind.RAISED, "KeyError: 'sum'"),
        ("exits", RewardErrorKind.RAISED, "SystemExit: 3"),
        ("short", RewardErrorKind.BAD_ANSWER, "step returned ([5], 1.0), not (observation, reward"),
        ("nothing", RewardErrorKind.BAD_ANSWER, "no observation, and done is not true"),
        ("object", RewardErrorKind.BAD_ANSWER, "is neither a text, nor tokens, nor messages"),
        ("no json", RewardErrorKind.BAD_ANSWER, "Object of type set is not JSON serializable"),
        ("mixed", RewardErrorKind.BAD_ANSWER, "is neither a text, nor tokens, nor messages"),
        ("long", RewardErrorKind.BAD_ANSWER, "more than 524288 bytes"),
        ("text reward", RewardErrorKind.NOT_A_NUMBER, "'one'"),
        ("nan", RewardErrorKind.NOT_FINITE, "nan"),
    ],
)
async def test_a_call_that_fails_costs_its_sample_alone(
    act: str, kind: RewardErrorKind, value: str
) -> None:
    async with environments(act=act) as process:
        await begin(process, 2)
        error = await failure(process)
        assert (error.kind, error.file) == (kind, "users_games.py")
        assert value in error.value
        assert error.line > 0
        assert await process.step(2, (5,)) == Step([1], 0.5)


async def test_a_call_that_hangs_ends_the_process_and_the_others_have_to_begin_again() -> None:
    async with environments(act="hangs", seconds=1.0) as process:
        await begin(process, 2)
        before = process.pid
        error = await failure(process)
        assert (error.kind, error.value) == (RewardErrorKind.TIMED_OUT, "1 s")
        with pytest.raises(EnvironmentLostError):
            await process.step(2, (5,))
        await begin(process, 2)
        assert await process.step(2, (5,)) == Step([1], 0.5)
        assert process.pid != before


async def test_a_call_that_waits_while_another_ends_the_process_is_lost() -> None:
    async with environments(act="ends") as process:
        await begin(process, 1)
        await begin(process, 2)
        lost = await asyncio.gather(
            process.step(1, (9,)), process.step(2, (9,)), return_exceptions=True
        )
        assert {type(error) for error in lost} == {EnvironmentLostError}
        assert "exit code 4" in str(lost)


async def test_of_a_call_that_forks_only_the_first_process_goes_on() -> None:
    async with environments(act="forks") as process:
        await begin(process, 1)
        assert await process.step(1, (9,)) == Step([5], done=True)
        await begin(process, 2)
        assert await process.step(2, (5,)) == Step([1], 0.5)


async def test_a_sample_that_ended_is_forgotten() -> None:
    async with environments() as process:
        await begin(process, 1)
        process.ended(1)
        process.ended(1)
        with pytest.raises(EnvironmentLostError):
            await process.step(1, (5,))


async def test_a_sample_that_ends_while_reset_begins_leaves_no_environment() -> None:
    async with environments("Live") as process:
        for sample in range(5):
            call = asyncio.create_task(begin(process, sample))
            while not process._calls:
                await asyncio.sleep(0)
            process.ended(sample)
            await call
        assert await begin(process, 9) == Step([1])


async def test_the_process_ends_with_close_and_with_it_every_call() -> None:
    async with environments(act="hangs") as process:
        await begin(process, 1)
        call = asyncio.create_task(process.step(1, (9,)))
        await asyncio.sleep(0.05)
        pid = process.pid
        assert pid is not None
        await process.close()
        with pytest.raises(EnvironmentLostError):
            await call
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("name", "field", "problem"),
    [
        ("Missing", "spec.environment.function", "has no 'Missing'"),
        ("NoStep", "spec.environment.function", "users_games:NoStep has no method 'step'"),
        ("OddParameter", "spec.environment.function", "'answer'; it may have response, response_"),
        ("WantsText", "spec.environment.function", "is built in and has no text"),
        ("Fails", "spec.environment.config", "raised OSError: no board"),
    ],
)
async def test_an_environment_that_cannot_be_is_refused_at_the_start(
    name: str, field: str, problem: str
) -> None:
    with pytest.raises(SpecError) as refused:
        async with environments(name):
            pass
    assert refused.value.field == field
    assert problem in refused.value.problem


async def test_an_environment_reads_text_without_the_special_tokens_of_a_turn(
    tmp_path: Path,
) -> None:
    directory = write_tiny_model(tmp_path / "m")
    tokenizer = open_tokenizer(open_model(str(directory)))
    settings = EnvironmentConfig("users_games:Reads")
    process = EnvironmentProcess(settings, directory=directory, free=lambda: None)
    try:
        end = min(tokenizer.eos)
        asked = [*tokenizer.encode("a cat"), end]
        await process.reset(1, prompt=asked, row={}, seed=0)
        answer = await process.step(1, [*tokenizer.encode("sat"), end])
        assert answer.observation == f"{tokenizer.decode(asked, special=True)} sat"
    finally:
        await process.close()
