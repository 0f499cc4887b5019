"""What the program of a worker imports, which delays the start of each pod."""

import subprocess
import sys

import pytest

COMPILER, SHARDING = "torch._dynamo", "torch.distributed.tensor"
"""Each takes a second or two of processor time, beside torch's own two."""

PROGRAM = """
import sys
import {module}
import torch
from rollcall_runtime.models.finite import finite
assert all(finite(tensor) for tensor in torch.nn.Linear(2, 2).state_dict().values())
print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("rollcall_runtime.rollout.app", {COMPILER, SHARDING, "transformers"}),
        ("rollcall_runtime.train.app", {COMPILER, "transformers"}),
    ],
)
def test_a_worker_imports_nothing_heavy_that_it_may_not_need(module: str, heavy: set[str]) -> None:
    program = PROGRAM.format(module=module)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found = set(done.stdout.split())
    assert module in found
    assert not found & heavy
