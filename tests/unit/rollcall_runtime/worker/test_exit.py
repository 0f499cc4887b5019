"""The termination message names the user's own line first and fits what Kubernetes keeps."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from rollcall_plugins.rewards.code.reward import CodeSettings
from rollcall_protocol import pod_contract
from rollcall_runtime.worker.errors import FencedError, SpecError
from rollcall_runtime.worker.exit import (
    MESSAGE_BYTES,
    report_failure,
    report_stop,
    summary,
    termination_message,
    user_frame,
)

USERS_REWARD = """
import json


def score(prompt, response):
    return parse(response)


def parse(response):
    if response == (1,):
        return 1 / 0
    return json.loads("{broken")
"""


@pytest.fixture
def reward_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's module on the Python path."""
    (tmp_path / "own_reward.py").write_text(USERS_REWARD)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    sys.modules.pop("own_reward", None)
    return "own_reward"


def error_of_reward(module: str, response: tuple[int, ...] = ()) -> BaseException:
    """What the user's own function raises."""
    score = importlib.import_module(module).score
    with pytest.raises((ZeroDivisionError, json.JSONDecodeError)) as caught:
        score((), response)
    return caught.value


def crash(error: Exception) -> BaseException:
    """`error` with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_an_error_in_a_users_reward_names_the_line_in_the_users_file(reward_module: str) -> None:
    error = error_of_reward(reward_module, (1,))
    assert summary(error) == "ZeroDivisionError: division by zero (own_reward.py:11 in parse)"
    lines = termination_message(error).decode().splitlines()
    assert lines[0] == summary(error)
    assert lines[2] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_frames_of_the_standard_library_below_the_users_are_passed_over(reward_module: str) -> None:
    line = summary(error_of_reward(reward_module))
    assert line.startswith("JSONDecodeError: Expecting property name")
    assert line.endswith("(own_reward.py:12 in parse)")


def test_a_plugins_lines_are_not_the_users() -> None:
    with pytest.raises(ValueError, match="column must not be empty") as caught:
        CodeSettings(column="")
    trace = caught.value.__traceback__
    assert trace is not None
    caught.value.__traceback__ = trace.tb_next  # without this test's own line
    assert user_frame(caught.value) is None


def test_an_error_with_an_advice_names_the_users_line_that_caused_it(reward_module: str) -> None:
    with pytest.raises(SpecError) as caught:
        raise SpecError("spec.data", "wrong") from error_of_reward(reward_module, (1,))
    caught.value.__traceback__ = None  # this test's own line
    assert summary(caught.value) == "spec.data: wrong (own_reward.py:11 in parse)"


def test_a_crash_without_a_users_frame_names_the_last_frame() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("[")
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # from here on it is the library's
    assert re.fullmatch(
        r"JSONDecodeError: Expecting value: line 1 .* \(decoder\.py:\d+ in raw_decode\)",
        summary(error),
    )


def test_an_error_that_says_what_to_do_stands_alone() -> None:
    assert termination_message(SpecError("spec.x", "wrong")) == b"spec.x: wrong"
    assert termination_message(FencedError("another trainer runs")) == b"another trainer runs"


def test_a_message_of_several_lines_becomes_one_line() -> None:
    error = crash(RuntimeError("CUDA error\n  out of memory\n"))
    assert summary(error).startswith("RuntimeError: CUDA error out of memory (test_exit.py:")


def deep(levels: int) -> None:
    if levels == 0:
        raise ValueError("ü" * 5000)
    deep_again(levels - 1)


def deep_again(levels: int) -> None:
    deep(levels)


def test_a_long_traceback_keeps_its_end_within_what_a_kubelet_keeps() -> None:
    with pytest.raises(ValueError, match="ü") as caught:
        deep(60)
    message = termination_message(caught.value)
    text = message.decode()  # no character is cut
    assert len(message) <= MESSAGE_BYTES
    assert re.match(r"ValueError: ü+\.\.\. \(test_exit\.py:\d+ in deep\)\n\n\.\.\.\n", text)

    with pytest.raises(RuntimeError, match="short") as caught_short:
        alternate(60)
    text = termination_message(caught_short.value).decode()
    assert text.splitlines()[0].endswith("in alternate)")
    assert text.splitlines()[-1] == "RuntimeError: short"
    assert "\n...\n" in text


def alternate(levels: int) -> None:
    if levels == 0:
        raise RuntimeError("short")
    deeper = alternate if levels % 2 else alternate_again
    deeper(levels - 1)


def alternate_again(levels: int) -> None:
    alternate(levels)


def test_the_message_is_written_where_kubernetes_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(pod_contract, "TERMINATION_LOG", str(log))
    code = report_failure(crash(OSError("no route")), pod_contract.ExitCode.FAILED)
    assert code == pod_contract.ExitCode.FAILED
    assert log.read_text().startswith("OSError: no route (test_exit.py:")
    assert capfd.readouterr().err.startswith("OSError: no route (test_exit.py:")


def test_a_stop_before_the_end_is_written_to_the_termination_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setattr(pod_contract, "TERMINATION_LOG", str(path))
    report_stop("stopped after step 3 of 10")
    assert path.read_text() == "stopped after step 3 of 10"
