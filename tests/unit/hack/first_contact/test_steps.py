"""What a step says when it ends, and that all of them run where doubles stand for the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from hack.first_contact import __main__ as first_contact
from hack.first_contact.plan import MOST_SECONDS, STEPS, Step
from hack.first_contact.wheels import NAMES, with_wheels

ROOT = Path(__file__).parents[4]
PROGRAMS = {
    "passing": "print('a warning'); print('{\"gigabytes\": 3}')",
    "lacking": 'print(\'{"skipped": "no vLLM"}\')',
    "failing": "raise SystemExit('the card is away')",
    "silent": "pass",
    "late": "import time; time.sleep(60)",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of the steps."""
    for name, text in PROGRAMS.items():
        path = tmp_path / "hack" / "first_contact" / "steps" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(first_contact, "ROOT", tmp_path)
    return tmp_path


def verdict(name: str, *, seconds: float = 20) -> dict[str, object]:
    step = Step(name, "what it asks", 20)
    made = first_contact.make(step, "cpu", python=sys.executable, path=[], seconds=seconds)
    assert float(made.pop("seconds")) < 20
    assert made.pop("step") == name
    assert made.pop("asks") == "what it asks"
    return made


@pytest.mark.usefixtures("programs")
def test_the_figures_of_a_step_are_its_last_line() -> None:
    assert verdict("passing") == {"verdict": "passed", "figures": {"gigabytes": 3}}
    assert verdict("lacking") == {"verdict": "skipped", "reason": "no vLLM"}


@pytest.mark.usefixtures("programs")
def test_a_step_that_fails_says_what_it_wrote() -> None:
    failing = verdict("failing")
    assert (failing["verdict"], failing["problem"]) == ("failed", "code 1")
    assert "the card is away" in str(failing["said"])
    assert verdict("silent")["verdict"] == "failed"
    late = verdict("late", seconds=0.5)
    assert (late["verdict"], late["problem"]) == ("failed", "not done within 0 s")


@pytest.mark.usefixtures("programs")
def test_what_there_is_no_time_for_is_skipped() -> None:
    assert verdict("passing", seconds=-1) == {"verdict": "skipped", "reason": "the 540 s are over"}


def test_the_steps_fit_into_the_time_and_are_there() -> None:
    assert sum(step.seconds for step in STEPS) <= MOST_SECONDS
    for step in STEPS:
        import_module(f"hack.first_contact.steps.{step.name}")


def test_wheels_are_carried_of_what_is_locked_for_gpus() -> None:
    lock = (ROOT / "requirements/worker-cuda.txt").read_text(encoding="utf-8")
    assert all(f"\n{name}==" in f"\n{lock}" for name in NAMES)
    with with_wheels() as path:
        assert len(path) <= 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_steps_run_with_doubles_in_the_place_of_the_device(tmp_path: Path) -> None:
    """VLLM is in another environment: `make first-contact` names its Python."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "hack.first_contact", "--device", "cpu", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stdout
    verdicts = json.loads(out.read_text())
    assert [each["step"] for each in verdicts] == [step.name for step in STEPS]
    found = {each["step"]: each["verdict"] for each in verdicts}
    assert found.pop("serving") == "skipped"
    assert set(found.values()) == {"passed"}
    assert [json.loads(line) for line in ended.stdout.splitlines()] == verdicts
