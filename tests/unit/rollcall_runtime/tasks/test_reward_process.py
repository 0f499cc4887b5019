"""The user's reward function runs beside the rollout: what it does costs its own process alone."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollcall_protocol.wire.reward_errors import MAX_TEXT, RewardError, RewardErrorKind
from rollcall_runtime.tasks.reward_process import RewardProcess, Score
from rollcall_runtime.worker.errors import SpecError

USERS_REWARDS = """\
import asyncio, ctypes, decimal, os, sys, time

def right(prompt, response): return len(response) / 4
def with_row(prompt, response, row): return row["answer"] * 0.5
def yes(prompt, response): return len(response) == 2
def whole(prompt, response): return 1
def exact(prompt, response): return decimal.Decimal("0.25")

async def judged(prompt, response):
    await asyncio.sleep(0.001)
    return 0.75

def numpy_scalar(prompt, response):
    import numpy
    return numpy.float32(0.5)

def numpy_bool(prompt, response):
    import numpy
    return numpy.bool_(True)

def torch_scalar(prompt, response):
    import torch
    return torch.tensor(0.5)

class Verifier:
    def __call__(self, prompt, response): return 0.5
verifier = Verifier()

def raises(prompt, response):
    return {}[response[0]]

def nothing(prompt, response): pass
def text(prompt, response): return "0.5"
def several(prompt, response):
    import numpy
    return numpy.zeros(2)
def nan(prompt, response): return float("nan")
def infinite(prompt, response): return -float("inf")
def huge(prompt, response): return 10**400
def large(prompt, response): return 2e6
def long_text(prompt, response): return "x\\n" * 100_000

def if_two(prompt, response, act):
    if len(response) == 2:
        act()
    return 1.0

def exits(prompt, response): return if_two(prompt, response, lambda: sys.exit(0))
def ends(prompt, response): return if_two(prompt, response, lambda: os._exit(3))
def is_killed(prompt, response): return if_two(prompt, response, lambda: os.kill(os.getpid(), 9))
def crashes(prompt, response): return if_two(prompt, response, lambda: ctypes.string_at(0))
def ends_or_raises(prompt, response):  # with two tokens, or with three
    return if_two(prompt, response, lambda: os._exit(3)) / (len(response) - 3)
def hangs(prompt, response): return if_two(prompt, response, lambda: time.sleep(60))
def swallows(prompt, response): return if_two(prompt, response, lambda: bytearray(1 << 30))
def closes(prompt, response):
    return if_two(prompt, response, lambda: os.closerange(3, os.sysconf("SC_OPEN_MAX")))

def forks(prompt, response):
    if os.fork() == 0:
        return 0.125  # from the child
    return 0.5

def ends_with_a_helper(prompt, response):
    # The helper holds whatever its parent had open.
    def act():
        if os.fork() == 0:
            time.sleep(60)
        os._exit(5)
    return if_two(prompt, response, act)

def fills_the_disk(prompt, response):
    with open("/dev/full", "w", buffering=1) as file:
        file.write("x\\n")

def process_id(prompt, response): return os.getpid() / 1e6
def modules(prompt, response): return "torch" in sys.modules

def one(prompt): return 1.0
def four(prompt, response, row, more): return 1.0
"""


@pytest.fixture(autouse=True)
def _users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_rewards.py").write_text(USERS_REWARDS, encoding="utf-8")
    (tmp_path / "users_syntax.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "users_exit.py").write_text("import os; os._exit(9)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@asynccontextmanager
async def reward_process(
    function: str,
    *,
    seconds: float = 20.0,
    stop: bool = False,
    free: Callable[[], int | None] = lambda: None,
) -> AsyncIterator[RewardProcess]:
    process = RewardProcess(
        f"users_rewards:{function}", timeout=seconds, stop_at_error=stop, free=free
    )
    try:
        await process.start()
        yield process
    finally:
        await process.close()


async def scores(function: str, *lengths: int, seconds: float = 20.0) -> list[Score]:
    """Of responses of these lengths."""
    async with reward_process(function, seconds=seconds) as process:
        return await process.score((0, 1), [(5,) * n for n in lengths], {"answer": 1})


@pytest.mark.parametrize(
    ("function", "reward"),
    [
        ("right", 0.5),
        ("with_row", 0.5),
        ("yes", 1.0),
        ("whole", 1.0),
        ("exact", 0.25),
        ("judged", 0.75),
        ("numpy_scalar", 0.5),
        ("numpy_bool", 1.0),
        ("verifier", 0.5),
    ],
)
async def test_whatever_is_a_number_is_a_reward(function: str, reward: float) -> None:
    assert await scores(function, 2) == [reward]


async def test_so_is_a_scalar_of_torch() -> None:
    assert await scores("torch_scalar", 2, seconds=60.0) == [0.5]


async def test_the_process_does_not_import_torch_by_itself() -> None:
    assert await scores("modules", 2) == [0.0]


@pytest.mark.parametrize(
    ("function", "kind", "value"),
    [
        ("raises", RewardErrorKind.RAISED, "KeyError: 5"),
        ("exits", RewardErrorKind.RAISED, "SystemExit: 0"),
        (
            "fills_the_disk",
            RewardErrorKind.RAISED,
            "OSError: [Errno 28] No space left on device",
        ),
        ("nothing", RewardErrorKind.NOT_A_NUMBER, "None"),
        ("text", RewardErrorKind.NOT_A_NUMBER, "'0.5'"),
        ("several", RewardErrorKind.NOT_A_NUMBER, "array([0., 0.])"),
        ("nan", RewardErrorKind.NOT_FINITE, "nan"),
        ("infinite", RewardErrorKind.NOT_FINITE, "-inf"),
        ("large", RewardErrorKind.TOO_LARGE, "2000000.0"),
    ],
)
async def test_an_unusable_reward_is_an_error_of_its_sample(
    function: str, kind: RewardErrorKind, value: str
) -> None:
    (error,) = await scores(function, 2)
    assert isinstance(error, RewardError)
    assert (error.sample, error.kind, error.value) == (0, kind, value)
    lines = USERS_REWARDS.splitlines()
    acts = {"exits": "sys.exit", "raises": "{}[", "fills_the_disk": "/dev/full"}
    wanted = acts.get(function, function)
    assert error.file == "users_rewards.py"
    assert wanted in lines[error.line - 1]


async def test_a_number_beyond_any_float_is_not_finite() -> None:
    (error,) = await scores("huge", 2)
    assert isinstance(error, RewardError)
    assert error.kind is RewardErrorKind.NOT_FINITE


async def test_a_value_is_shown_shortly_and_on_one_line() -> None:
    (error,) = await scores("long_text", 2)
    assert isinstance(error, RewardError)
    assert len(error.value) == MAX_TEXT
    assert error.value.isprintable()


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("ends", "exit code 3"),
        ("crashes", "signal SIGSEGV"),
        ("ends_with_a_helper", "exit code 5"),
    ],
)
async def test_a_process_that_ends_costs_one_sample(function: str, value: str) -> None:
    first, error, last = await scores(function, 1, 2, 3)
    assert (first, last) == (1.0, 1.0)
    assert isinstance(error, RewardError)
    assert (error.sample, error.kind, error.value) == (1, RewardErrorKind.PROCESS_DIED, value)


async def test_one_that_the_kernel_ends_says_how_much_memory_it_had_and_what_to_raise() -> None:
    async with reward_process("is_killed", free=lambda: 1 << 30) as process:
        (error,) = await process.score((), [(5, 5)], {})
    assert isinstance(error, RewardError)
    assert error.kind is RewardErrorKind.PROCESS_DIED
    assert "no memory left (its own limit: 512 MiB); raise resources.limits.memory" in error.value
    assert len(error.value) < MAX_TEXT


async def test_each_error_has_the_number_of_its_sample_whatever_ended_before() -> None:
    found = await scores("ends_or_raises", 2, 1, 2, 3)
    errors = [(score.sample, score.kind) for score in found if isinstance(score, RewardError)]
    died, raised = RewardErrorKind.PROCESS_DIED, RewardErrorKind.RAISED
    assert errors == [(0, died), (2, died), (3, raised)]


async def test_a_call_that_hangs_is_killed_after_the_time_limit() -> None:
    began = time.monotonic()
    first, error, last = await scores("hangs", 1, 2, 3, seconds=2.0)
    assert (first, last) == (1.0, 1.0)
    assert isinstance(error, RewardError)
    assert (error.sample, error.kind, error.value) == (1, RewardErrorKind.TIMED_OUT, "2 s")
    assert time.monotonic() - began < 15


async def test_a_call_that_eats_memory_gets_none() -> None:
    async with reward_process("swallows", free=lambda: 1 << 30) as process:
        first, error, last = await process.score((), [(5,), (5, 5), (5, 5, 5)], {})
    assert (first, last) == (1.0, 1.0)
    assert isinstance(error, RewardError)
    assert error.value.startswith("MemoryError")


async def test_a_process_that_loses_its_socket_costs_one_sample() -> None:
    first, error, last = await scores("closes", 1, 2, 3)
    assert (first, last) == (1.0, 1.0)
    assert isinstance(error, RewardError)
    assert error.kind is RewardErrorKind.PROCESS_DIED


async def test_of_a_function_that_forks_only_the_first_process_answers() -> None:
    assert await scores("forks", 1, 1, 1) == [0.5] * 3


async def test_one_process_scores_all_samples() -> None:
    async with reward_process("process_id") as process:
        found = [await process.score((), [(1,), (2,)], {}) for _ in range(2)]
        assert found == [[pytest.approx((process.pid or 0) / 1e6)] * 2] * 2


async def test_a_process_that_ended_meanwhile_is_started_again() -> None:
    async with reward_process("right") as process:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        assert await process.score((), [(5, 5)], {}) == [0.5]


async def test_samples_after_an_error_are_not_scored_if_their_group_is_lost() -> None:
    async with reward_process("ends", stop=True) as process:
        first, error = await process.score((), [(5,), (5, 5), (5,), (5,)], {})
        assert first == 1.0
        assert isinstance(error, RewardError)
        assert await process.score((), [(5,)], {}) == [1.0], "the next group is"
    async with reward_process("raises", stop=True) as process:
        assert len(await process.score((), [(5,)] * 4, {})) == 1
        assert len(await process.score((), [(5,)] * 4, {})) == 1, "no answer is left over"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("no_such_thing:f", "cannot import 'no_such_thing': ModuleNotFoundError"),
        ("users_syntax:f", "cannot import 'users_syntax': SyntaxError"),
        ("users_exit:f", "importing 'users_exit:f' ended its process: exit code 9"),
        ("users_rewards:scores", "module 'users_rewards' has no 'scores'"),
        ("users_rewards:one", "users_rewards:one(prompt) cannot be called as (prompt, response)"),
        ("users_rewards:four", "cannot be called as (prompt, response, row=...)"),
    ],
)
async def test_a_function_that_cannot_be_called_is_refused_at_the_start(
    function: str, problem: str
) -> None:
    process = RewardProcess(function, timeout=5.0, stop_at_error=True)
    with pytest.raises(SpecError) as refused:
        await process.start()
    assert str(refused.value).startswith("spec.reward.function: ")
    assert problem in str(refused.value)
    assert process.pid is None


PARENT = """
import asyncio, sys
from rollcall_runtime.tasks.reward_process import RewardProcess

async def main():
    process = RewardProcess("users_rewards:hangs", timeout=60.0, stop_at_error=True)
    await process.start()
    print(process.pid, flush=True)
    await process.score((), [(5, 5)], {})

asyncio.run(main())
"""


def test_it_ends_with_its_rollout_even_in_a_call_and_by_sigkill(tmp_path: Path) -> None:
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    rollout = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert rollout.stdout is not None
    child = int(rollout.stdout.readline())
    time.sleep(0.5)  # the call has begun
    assert is_running(child)
    rollout.kill()
    rollout.wait()
    rollout.stdout.close()
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    """Whether the process runs; a zombie does not, which its parent has yet to collect."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
