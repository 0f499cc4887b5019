"""What a worker imports: each pod that comes waits for that, and nobody trains meanwhile."""

import subprocess
import sys

import pytest

COMPILER, SHARDING = "torch._dynamo", "torch.distributed.tensor"
"""Each takes a second or two of processor time, beside torch's own two."""

PROGRAM = """
import sys
import {module}
from rollcall_runtime.models import finite, weight_loading
import torch
model = torch.nn.Linear(2, 2)
assert all(finite.finite(tensor) for tensor in model.state_dict().values())
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
