"""What only a worker sees to be wrong: it names the field and what to do, before any step."""

from pathlib import Path

import pytest

from tests.unit.rollcall_runtime.bad_input.case import Case, ends_with_the_field_and_what_to_do
from tests.unit.rollcall_runtime.bad_input.cases import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_worker_ends_with_the_field_and_what_to_do(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends_with_the_field_and_what_to_do(case, tmp_path, monkeypatch, caplog)
