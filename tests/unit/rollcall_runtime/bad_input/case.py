"""Mistakes that only a worker sees, in files, checkpoints and memory, and what it says of them.

Those that the operator or the API server sees are in `tests/apiserver/bad_manifests`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import PoolConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.wire.json_codec import encode
from rollcall_runtime import cli
from tests.unit.rollcall_runtime.containers import use_container
from tests.unit.rollcall_runtime.jobs import job_config, pool_config

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


def rows(folder: Path, *values: object, name: str = "rows.jsonl") -> DataConfig:
    """A file with these lines: objects as JSON, text as it is."""
    lines = [value if isinstance(value, str) else json.dumps(value) for value in values]
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return DataConfig((DataSource(str(folder / name)),))


def ends_with_the_field_and_what_to_do(
    case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Run the worker of `case` in `folder`; fails the test unless it says what the case says."""
    files = folder / "files"
    files.mkdir()
    changes = case.make(files)
    before = contents(files)
    termination = use_container(folder, monkeypatch)
    monkeypatch.setenv(pod_contract.CONFIG, json.dumps(encode(job_config(**changes))))
    monkeypatch.setenv(pod_contract.POOL_CONFIG, json.dumps(encode(case.pool)))
    case.breaks(monkeypatch)
    worker = {"trainer": cli.trainer, "rollout": cli.rollout}[case.worker]
    assert worker([]) == case.code
    message = termination.read_text()
    assert message.startswith(f"{case.says[0]}: "), message
    for part in case.says:
        assert part in message
    assert "step 1" not in caplog.text, "nothing was trained"
    assert contents(files) == before, "and nothing was written"
