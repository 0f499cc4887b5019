"""`rollcall check` of manifests: every mistake by its field, without looking into a container."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_local.check_command import main

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    "words", [["reverse"], ["-k", str(EXAMPLES / "own-task")], ["own-answers"]]
)
def test_a_right_manifest_is_said_to_be_right(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--manifests-only"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("right: RLJob ") for line in lines)


def test_every_mistake_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / "reverse.yaml").read_text())
    body["spec"]["trainer"]["template"]["spec"]["nodeSelector"] = {"gpu": "a100"}
    body["spec"]["rollouts"][0]["syncGroup"] = "far"
    pool: dict[str, Any] = yaml.safe_load((EXAMPLES / "extra-pool.yaml").read_text())
    pool["spec"]["jobRef"]["name"] = "another"
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([body, pool]))
    assert main([str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    job = "WRONG: RLJob reverse: spec"
    beginnings = (
        f"{job}.rollouts[0].syncGroup: the job has no sync group 'far'",
        f"{job}.trainer.template.spec.nodeSelector: there is one machine",
        f"WRONG: RolloutPool {pool['metadata']['name']}: spec.jobRef.name: no RLJob 'another'",
    )
    assert len(lines) == len(beginnings)
    for beginning in beginnings:
        assert sum(line.startswith(beginning) for line in lines) == 1, beginning


def test_without_a_job_there_is_nothing_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert capsys.readouterr().out == "WRONG: no RLJob is given\n"


def test_a_name_that_is_no_example_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revers"]) == 1
    assert "rollcall check: revers: there is no such file" in capsys.readouterr().err


def test_a_pod_that_is_larger_than_the_machine_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / "reverse.yaml").read_text())
    container = body["spec"]["trainer"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"memory": "900Ti"}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(body))
    assert main([str(file), "--manifests-only"]) == 1
    assert "resources.requests.memory: a pod asks for" in capsys.readouterr().out
