"""What only a worker sees to be wrong: it names the field and what to do, before any step."""

import json
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.json_codec import encode
from rollcall_runtime import cli
from tests.unit.rollcall_runtime.bad_input.case import Case, contents
from tests.unit.rollcall_runtime.bad_input.cases import CASES
from tests.unit.rollcall_runtime.containers import use_container
from tests.unit.rollcall_runtime.jobs import job_config


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_worker_ends_with_the_field_and_what_to_do(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    changes = case.make(files)
    before = contents(files)
    termination = use_container(tmp_path, monkeypatch)
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
