"""`make first-contact`: asks a machine with an accelerator what no other machine can tell.

Each step is a program of its own with a deadline, and has its verdict as one line of JSON when it
ends; the file --out has them all. Exits 1 if a step has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hack.first_contact.plan import MOST_SECONDS, STEPS, Step
from hack.first_contact.step import SKIPPED
from hack.first_contact.wheels import with_wheels

ROOT = Path(__file__).parents[2]
_SAID = 4000  # characters of what a failed step wrote


def main() -> int:
    """Make the steps; 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="make first-contact", description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "npu", "cpu"])
    parser.add_argument("--out", type=Path, default=Path("results/first_contact.json"))
    parser.add_argument("--only", nargs="*", default=[], choices=[step.name for step in STEPS])
    parser.add_argument("--vllm-python", default=sys.executable, help="one that has vLLM")
    given = parser.parse_args()
    chosen = [step for step in STEPS if not given.only or step.name in given.only]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    ends, verdicts = time.monotonic() + MOST_SECONDS, []
    with with_wheels() as path:
        for step in chosen:
            python = given.vllm_python if step.name == "serving" else sys.executable
            left = min(step.seconds, ends - time.monotonic())
            verdicts.append(make(step, given.device, python=python, path=path, seconds=left))
            print(json.dumps(verdicts[-1]), flush=True)
            given.out.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    return int(any(verdict["verdict"] == "failed" for verdict in verdicts))


def make(
    step: Step, device: str, *, python: str, path: list[str], seconds: float
) -> dict[str, Any]:
    """The verdict of a step: passed with figures, skipped with a reason, or failed."""
    began = time.monotonic()
    verdict: dict[str, Any] = {"step": step.name, "asks": step.asks}
    verdict |= _result(step, device, python=python, path=path, seconds=seconds)
    return verdict | {"seconds": round(time.monotonic() - began, 1)}


def _result(
    step: Step, device: str, *, python: str, path: list[str], seconds: float
) -> dict[str, Any]:
    if seconds <= 0:
        return {"verdict": SKIPPED, "reason": f"the {MOST_SECONDS} s are over"}
    module = f"hack.first_contact.steps.{step.name}"
    folders = [str(ROOT), str(ROOT / "workloads"), str(ROOT / "operator"), *path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "HF_HUB_OFFLINE": "1"}
    try:
        ended = subprocess.run(
            [python, "-m", module, device],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = _text(error.stderr)[-_SAID:]
        return {"verdict": "failed", "problem": f"not done within {seconds:.0f} s", "said": said}
    lines = _text(ended.stdout).splitlines()
    if ended.returncode or not lines:
        said = _text(ended.stderr)[-_SAID:]
        return {"verdict": "failed", "problem": f"code {ended.returncode}", "said": said}
    figures = json.loads(lines[-1])
    if set(figures) == {SKIPPED}:
        return {"verdict": SKIPPED, "reason": figures[SKIPPED]}
    return {"verdict": "passed", "figures": figures}


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
