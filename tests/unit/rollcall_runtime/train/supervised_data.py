"""The reverse task with its answers, for supervised training of the built-in decoder."""

import json
from pathlib import Path

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_runtime.tasks import reverse

MODEL = "builtin:reverse-tiny"


def reverse_answers(path: Path, *, rows: int, seed: int = 0) -> DataConfig:
    """Write that many rows to `path`."""
    prompts = [reverse.prompt(number, seed=seed) for number in range(rows)]
    lines = [json.dumps({"tokens": p, "completion": reverse.answer(p)}) + "\n" for p in prompts]
    path.write_text("".join(lines))
    return DataConfig((DataSource(str(path)),))
