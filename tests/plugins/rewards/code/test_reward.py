"""Code in a response is run where it can do nothing but compute, and is judged outside."""

import ast
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall_plugins.rewards.code import reward as code_module
from rollcall_plugins.rewards.code.reward import CodeReward
from rollcall_plugins.rewards.code.sandbox import landlock
from rollcall_plugins.rewards.code.sandbox.code_run import (
    CodeRun,
    Limits,
    SandboxError,
    call_function,
    run_program,
)
from rollcall_runtime.worker.errors import SpecError

LIMITS = Limits(seconds=2, memory=256 << 20)
BRIEF = Limits(seconds=1, memory=256 << 20)
SECRET = "a secret of the rollout"


def run(code: str, given: str = "", limits: Limits = LIMITS) -> CodeRun:
    return run_program(code, given, limits)


def raised(code: str) -> str:
    """The class of what `code` raises in the sandbox."""
    lines = "".join(f" {line}\n" for line in code.splitlines())
    tried = f"try:\n{lines}except BaseException as e: print(type(e).__name__)\nelse: print('no')"
    return run(tried).output.decode().strip()


def score(response: str, row: dict[str, Any], **config: Any) -> float:
    reward = CodeReward(config, field="spec.reward.config")
    return reward((1,), (1,), row=row, response_text=response)


ECHO = {"tests": [{"input": "a", "output": "a"}, {"input": "b\n", "output": "b \n\n"}]}
ADD = {
    "function": "add",
    "tests": [{"arguments": [1, 2], "result": 3}, {"arguments": ["a", "b"], "result": "ab"}],
}


def test_white_space_at_the_ends_of_lines_does_not_count() -> None:
    written = {"tests": [{"input": "a", "output": "a \nend"}]}
    assert score("print(input())\nprint('end  ')", written) == 1
    assert score("print('', input())\nprint('end')", written) == 0


def test_a_program_reads_and_writes() -> None:
    assert run("print(input()[::-1])", "abc\n") == CodeRun(b"cba\n", ended_well=True)
    assert not run("print(1); raise SystemExit(3)").ended_well
    assert not run("this is no Python").ended_well


def test_a_function_is_called_until_a_call_fails() -> None:
    add = "print('loud')\ndef add(a, b): return a + b"
    assert call_function(add, "add", [[1, 2], [3, 4], ["a", 1], [5, 6]], LIMITS) == [3, 7]
    assert call_function(add, "subtract", [[1, 2]], LIMITS) == []
    assert call_function("def f(): return {1}", "f", [[]], LIMITS) == []  # no JSON


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.socket()",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import socket; socket.socketpair()",
    ],
)
def test_it_has_no_network(code: str) -> None:
    assert raised(code) == "PermissionError"


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_it_reaches_no_port_of_this_machine(listener: int) -> None:
    assert raised(f"import socket; socket.create_connection(('127.0.0.1', {listener}))") != "no"


def test_it_reads_and_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_TOKEN", SECRET)
    (tmp_path / "file").write_text(SECRET)
    for path in (tmp_path / "file", f"/proc/{os.getpid()}/environ", "/proc/self/environ"):
        assert raised(f"open({str(path)!r}).read()") == "PermissionError"
    assert raised(f"open({str(tmp_path / 'new')!r}, 'w')") == "PermissionError"
    assert raised(f"import os; os.remove({str(tmp_path / 'file')!r})") == "PermissionError"
    assert (tmp_path / "file").read_text() == SECRET
    assert SECRET not in run("import os; print(dict(os.environ))").output.decode()


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.setsid()",
    ],
)
def test_it_starts_and_signals_no_process(code: str) -> None:
    assert raised(code) == "PermissionError"


def each_raised(calls: dict[str, str]) -> dict[str, str]:
    """What each call raises in one sandbox, by its name; "" for nothing."""
    code = (
        f"import fcntl, os\nfound = {{}}\nfor name, call in {calls!r}.items():\n"
        " try: eval(call); found[name] = ''\n"
        " except OSError as e: found[name] = type(e).__name__\n"
        "print(found)"
    )
    found: dict[str, str] = ast.literal_eval(run(code).output.decode())
    return found


def test_no_descriptor_sends_signals_for_it() -> None:
    calls = {
        "F_SETOWN": "fcntl.fcntl(0, 8, os.getppid())",
        "F_SETOWN_EX": "fcntl.fcntl(0, 15, bytes(8))",
        "F_SETSIG": "fcntl.fcntl(0, 10, 9)",
        "F_SETLEASE": "fcntl.fcntl(0, 1024, 0)",
        "F_NOTIFY": "fcntl.fcntl(0, 1026, 1)",
        "F_SETFL": "fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | 0o20000)",
        "FIOASYNC": "fcntl.ioctl(0, 0x5452, bytes(4))",
        "FIOSETOWN": "fcntl.ioctl(0, 0x8901, bytes(4))",
        "SIOCSPGRP": "fcntl.ioctl(0, 0x8902, bytes(4))",
        "TIOCSTI": "fcntl.ioctl(0, 0x5412, b'x')",  # as if typed at a terminal
        "O_ASYNC": "os.open(os.__file__, os.O_RDONLY | 0o20000)",
    }
    assert each_raised(calls) == dict.fromkeys(calls, "PermissionError")


def test_a_descriptor_is_used_as_usual() -> None:
    calls = {
        "F_GETFD": "fcntl.fcntl(0, fcntl.F_GETFD)",
        "F_SETFD": "fcntl.fcntl(0, fcntl.F_SETFD, fcntl.FD_CLOEXEC)",
        "F_DUPFD_CLOEXEC": "fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)",
        "F_SETFL": "fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_NONBLOCK)",
        "FIOCLEX": "os.set_inheritable(0, False)",
        "isatty": "os.isatty(0)",
        "open": "open(os.__file__).read()",
    }
    assert each_raised(calls) == dict.fromkeys(calls, "")


def test_it_keeps_to_its_memory() -> None:
    assert raised("x = bytearray(300 << 20)") == "MemoryError"


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(600)"])
def test_it_ends_in_time(code: str) -> None:
    began = time.monotonic()
    assert run(code, limits=BRIEF) == CodeRun(b"", ended_well=False)
    assert time.monotonic() - began < 25  # 2 s, and some to start on a busy machine


def test_it_fills_no_memory_with_its_output() -> None:
    found = run("while True: print('x' * 10000)")
    assert not found.ended_well
    assert len(found.output) < 4 << 20


def test_the_standard_library_is_there() -> None:
    modules = "collections, decimal, fractions, functools, heapq, itertools, json, math, random, re"
    assert run(f"import {modules}; print(math.pi)").ended_well


def test_many_threads_may_run_code() -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(run("print(input())", "x").output))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [b"x\n"] * 4


@pytest.mark.parametrize(
    ("response", "row", "reward"),
    [
        ("print(input())", ECHO, 1),
        ("Here:\n```python\nprint('a')\n```\nor\n```python\nprint(input())\n```\n", ECHO, 1),
        ("print('a')", ECHO, 0),
        ("import os; os._exit(0)", ECHO, 0),
        ("print(input()); raise SystemExit(1)", ECHO, 0),
        ("def add(a, b): return a + b", ADD, 1),
        ("def add(a, b): return 3", ADD, 0),
        ("def add(a, b): import os; os._exit(0)", ADD, 0),
        ("I cannot.", ADD, 0),
    ],
)
def test_the_reward_is_one_if_all_tests_pass(
    response: str, row: dict[str, Any], reward: float
) -> None:
    assert score(response, row) == reward


def test_the_reward_may_be_the_share_of_tests_that_pass() -> None:
    assert score("print('b')", ECHO, partial=True) == 0.5
    assert score("def add(a, b): return 3", ADD, partial=True) == 0.5


def test_what_is_expected_is_not_in_the_sandbox() -> None:
    sought = "''.join(['the exp', 'ected one'])"  # so that its own text does not hold it
    looks = f"def f(a):\n import gc\n return [o for o in gc.get_objects() if {sought} in repr(o)]"
    assert call_function(looks, "f", [["x"]], LIMITS) == [[]]
    row = {"function": "f", "tests": [{"arguments": ["x"], "result": "the expected one"}]}
    assert score(looks, row) == 0


def test_code_may_be_found_by_a_pattern() -> None:
    row = {"tests": [{"input": "", "output": "1"}]}
    assert score("<code>print(1)</code>", row, extract="<code>(.*)</code>") == 1
    assert score("print(1)", row, extract="<code>(.*)</code>") == 0


@pytest.mark.parametrize("row", [ECHO, ADD])
def test_code_that_takes_all_the_time_of_a_call_has_the_reward_zero(row: dict[str, Any]) -> None:
    reward = CodeReward({"seconds": 600}, field="spec.reward.config")
    reward.call_seconds = 0.5
    began = time.monotonic()
    assert reward((1,), (1,), row=row, response_text="while True: pass") == 0
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({}, "the row has no column 'tests'"),
        ({"tests": None}, "column 'tests' must hold a list of 1 to 100, not null"),
        ({"tests": [{"input": None, "output": "1"}]}, "input of test 1 .* must be a text, not nu"),
        ({"tests": [{"input": "", "output": {}}]}, "output of test 1 .* must be a text, not {}"),
        (
            {"tests": [{"arguments": "ab", "result": 1}], "function": "f"},
            "arguments of test 1 .* must be a list, not 'ab'",
        ),
        ({"tests": ADD["tests"], "function": None}, "'function' must name one, not null"),
        ({"tests": ADD["tests"], "function": "class"}, "'function' must name one, not 'class'"),
        ({"tests": []}, "column 'tests' must hold a list of 1 to 100"),
        ({"tests": [{"input": ""}]}, "must have input and output, or arguments and result"),
        ({"tests": [*ECHO["tests"], *ADD["tests"]]}, "must have input and output, or arguments"),
        ({"tests": ADD["tests"], "function": "a.b"}, "'function' must name one, not 'a.b'"),
    ],
)
def test_a_row_without_tests_is_an_error_of_the_sample(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        score("print(1)", row)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"seconds": 0}, "seconds must be from 1 to 600"),
        ({"memoryMebibytes": 10}, "memoryMebibytes must be from 64"),
        ({"extract": "x"}, "has no group"),
        ({"column": ""}, "column must not be empty"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        CodeReward(config, field="spec.reward.config")


def test_a_machine_that_cannot_isolate_code_runs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> CodeRun:
        raise SandboxError("the kernel has no Landlock (Linux 5.13), or it is switched off")

    monkeypatch.setattr(code_module, "run_program", refused)
    with pytest.raises(SpecError, match=r"spec\.reward\.function: .* cannot isolate code: the ker"):
        CodeReward({}, field="spec.reward.config")


def test_a_kernel_without_landlock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    with pytest.raises(OSError, match="the kernel has no Landlock"):
        landlock.restrict([])
