"""What the server of ranks imports once, so that its forks need not: libraries, no engine.

Nothing here may start a thread or look for a device, which would not survive a fork.
"""

import importlib

from tests.process.engines.tiny_models import ARCHITECTURES

for _name in (
    "peft",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.distributed.checkpoint.default_planner",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    *(f"transformers.models.{name}.modeling_{name}" for name in ARCHITECTURES),
    "tests.process.engines.rank_worker",
):
    importlib.import_module(_name)
