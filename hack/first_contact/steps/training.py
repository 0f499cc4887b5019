"""A step of the built-in training engine on the device, in bf16, against the same on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import torch

from hack.first_contact.step import Figures, run
from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_engine import EngineSetup
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import update_policy

STEPS = 4
CLOSE = 0.05  # of log-probabilities: bf16 has eight bits
_ON_CPU = "FIRST_CONTACT_ON_CPU"


def training(device: str) -> Figures:
    """AssertionError if log-probabilities after some steps are not those of float32 on the CPU."""
    if os.environ.get(_ON_CPU):
        return {"logprobs": _logprobs("cpu", "fp32")[0]}
    found, seconds = _logprobs(device, "bf16")
    command = [sys.executable, "-m", "hack.first_contact.steps.training", "cpu"]
    reference = subprocess.run(
        command, env=os.environ | {_ON_CPU: "1"}, capture_output=True, check=True, timeout=60
    )
    expected = json.loads(reference.stdout.splitlines()[-1])["logprobs"]
    worst = max(abs(one - other) for one, other in zip(found, expected, strict=True))
    assert worst < CLOSE, f"a log-probability differs by {worst}"
    return {"steps": STEPS, "seconds": round(seconds, 2), "largest_difference": round(worst, 5)}


def _logprobs(device: str, precision: str) -> tuple[list[float], float]:
    ranks = TrainerProcessGroup(device=device)
    try:
        setup = EngineSetup(
            model="builtin:reverse-tiny",
            ranks=ranks,
            optimizer=OptimizerConfig("adamw", 1e-3),
            settings=EngineSettings(precision=precision),
            seed=3,
        )
        engine = Fsdp2Engine(setup)
        engine.initialize()
        began = time.monotonic()
        for number in range(STEPS):
            update_policy(engine, random_batch(seed=number))
        seconds = time.monotonic() - began
        batch = random_batch(seed=STEPS)
        found = engine.forward(batch).logprobs
        assert found is not None
        values = [float(value) for value in found.cpu()[batch.mask.cpu()]]
        engine.close()
        assert all(torch.tensor(values).isfinite())
        return values, seconds
    finally:
        ranks.close()


if __name__ == "__main__":
    run(training)
