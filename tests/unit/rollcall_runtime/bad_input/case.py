"""Mistakes that only a worker sees, in files, checkpoints and memory, and what it says of them.

Those that the operator or the API server sees are in `tests/apiserver/bad_manifests`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from rollcall_protocol.job_config import PoolConfig
from rollcall_protocol.pod_contract import ExitCode
from tests.unit.rollcall_runtime.jobs import pool_config

Changes = dict[str, Any]
"""Of `job_config`."""


@dataclass(frozen=True, slots=True)
class Case:
    """One mistake.

    `make` writes it into an empty folder and returns the changes of a good job that lead to it.
    `says` are parts of the termination message: the field's path first, then what to do.
    `breaks` spoils the container itself.
    """

    name: str
    says: tuple[str, ...]
    make: Callable[[Path], Changes]
    worker: Literal["trainer", "rollout"] = "trainer"
    code: ExitCode = ExitCode.BAD_CONFIG
    pool: PoolConfig = pool_config()  # noqa: RUF009 - frozen
    breaks: Callable[[pytest.MonkeyPatch], None] = lambda _: None


def edit(file: Path, **changes: Any) -> None:
    """Change values of a JSON object."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`, but for who resumed from it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(f.relative_to(folder)): f.read_bytes() for f in files if f.name != ".owners"}
