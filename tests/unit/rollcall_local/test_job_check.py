"""What `rollcall check` says of containers, with a program in place of the real one."""

import json
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_local.check_command import main
from rollcall_local.kubelet.machine import GPU, this_machine
from tests.apiserver.bad_manifests.manifests import external_job

EXAMPLES = Path(__file__).parents[3] / "examples"
IMAGE = "rollcall/worker-cpu:dev"
STUB = """#!{python}
import json, os, sys
from pathlib import Path
if sys.argv[1] == "-c":  # which packages are missing: none
    sys.exit(0)
reports = json.loads({reports!r})
role, prompts = sys.argv[3], json.load(sys.stdin)
Path({place!r}, role + ".json").write_text(json.dumps([prompts, dict(os.environ), os.getcwd()]))
report = reports[role]
sys.stdout.write(report if isinstance(report, str) else json.dumps(report))
sys.exit(3 if isinstance(report, str) else 0)
"""


def report(**found: Any) -> dict[str, Any]:
    return {"wrong": [], "right": [], "prompts": [], "parameters": 0} | found


class Machine:
    """An environment whose Python answers what the test says, and keeps what it was given."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.roles: dict[str, Any] = {"trainer": report(), "rollout": report()}

    def check(self, *words: str) -> int:
        python = self.place / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        filled = {"python": sys.executable, "place": str(self.place)}
        python.write_text(STUB.format(reports=json.dumps(self.roles), **filled))
        python.chmod(0o755)
        return main([*words, "--image", f"{IMAGE}={self.place / 'venv'}"])

    def given(self, role: str) -> tuple[list[Any], dict[str, str], str]:
        prompts, environment, folder = json.loads((self.place / f"{role}.json").read_text())
        return prompts, environment, folder


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("ROLLCALL_LOCAL_HOME", str(tmp_path / "runs"))
    return Machine(tmp_path)


def written(folder: Path, **changes: Any) -> str:
    """The example own-task with changes of its trainer's template, as a file and a ConfigMap."""
    body = yaml.safe_load((EXAMPLES / "own-task" / "rljob.yaml").read_text())
    body["spec"]["trainer"]["template"]["spec"]["containers"][0] |= changes
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "own-task"},
        "data": {"prompts.jsonl": "", "sorting.py": ""},
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all([body, config]))
    return str(file)


def test_what_a_worker_would_warn_of_is_said_and_is_not_wrong(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.roles["rollout"] = report(warnings=["spec.reward.config.extract: a tag"])
    assert machine.check("reverse") == 0
    warning = "warning: RLJob reverse: spec.reward.config.extract: a tag\n"
    assert warning in capsys.readouterr().out
    assert machine.check("reverse", "-o", "json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (found,) = (line for line in lines if "warning" in line)
    assert (found["right"], found["warning"]) == (True, True)


def test_what_containers_report_is_said_and_decides(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.roles["trainer"] = report(right=["spec.data: fine"], parameters=100)
    assert machine.check("reverse") == 0
    out = capsys.readouterr().out
    assert "right: RLJob reverse: spec.data: fine\n" in out
    assert "right: RLJob reverse: memory: weights, gradients and AdamW's moments of 100 para" in out
    machine.roles["rollout"] = report(wrong=["spec.reward: raised; correct the function"])
    assert machine.check("reverse") == 1
    out = capsys.readouterr().out
    assert "WRONG: RLJob reverse: spec.reward: raised; correct the function\n" in out


def test_json_has_an_object_for_each_line(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.roles["trainer"] = report(wrong=["spec.data: no row"])
    assert machine.check("reverse", "-o", "json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"about": "RLJob reverse", "text": "spec.data: no row", "right": False} in lines


def test_a_container_has_its_own_environment_volumes_and_the_first_prompts(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [{"tokens": [1], "row": {}}]
    machine.roles["trainer"] = report(prompts=prompts)
    assert machine.check("-k", str(EXAMPLES / "own-task")) == 0
    _, trainer, _ = machine.given("trainer")
    job = json.loads(trainer["ROLLCALL_CONFIG"])
    (source,) = job["data"]["sources"]
    assert source["name"].endswith("/volumes/task/prompts.jsonl")
    given, rollout, folder = machine.given("rollout")
    assert given == prompts
    assert json.loads(rollout["ROLLCALL_POOL_CONFIG"])["pool"] == "own-task-cpu"
    assert any(part.endswith("/volumes/task") for part in rollout["PYTHONPATH"].split(":"))
    assert not Path(folder).exists(), "what was made for the check is gone"
    capsys.readouterr()


def test_lines_have_the_paths_of_the_manifest(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = "import json, os, sys; sys.argv[1] == '-c' and sys.exit(0)"
    stub += "; f = json.loads(os.environ['ROLLCALL_CONFIG'])['data']"
    python = machine.place / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"#!{sys.executable}\n{stub}\n"
        "print(json.dumps({'wrong': [f['sources'][0]['name'] + ':7: no'], 'right': [],"
        " 'prompts': [], 'parameters': 0}))\n"
    )
    python.chmod(0o755)
    folder = str(EXAMPLES / "own-task")
    assert main(["-k", folder, "--image", f"{IMAGE}={machine.place / 'venv'}"]) == 1
    assert "WRONG: RLJob own-task: /task/prompts.jsonl:7: no\n" in capsys.readouterr().out


def test_a_check_that_fails_says_what_it_said_last(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.roles["trainer"] = "no JSON"
    assert machine.check("reverse") == 1
    assert "spec.trainer.template: its check ended with exit code 3" in capsys.readouterr().out


def test_an_object_that_is_not_given_is_named(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variable = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}}
    assert machine.check(written(tmp_path, env=[variable])) == 1
    said = "WRONG: RLJob own-task: spec.trainer.template: Secret keys is not in these manifests; "
    assert said in capsys.readouterr().out


def test_a_limit_below_the_estimate_is_wrong(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.roles["trainer"] = report(parameters=100_000_000)
    file = written(tmp_path, resources={"limits": {"memory": "1Gi"}})
    assert machine.check(file) == 1
    out = capsys.readouterr().out
    assert "container trainer: resources.limits.memory: 1.0 GiB is too little" in out
    assert machine.check(written(tmp_path, resources={"limits": {"memory": "3Gi"}})) == 0


def test_a_model_that_no_machine_holds_is_wrong(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.roles["trainer"] = report(parameters=10**13)
    assert machine.check("reverse") == 1
    assert "and this machine has" in capsys.readouterr().out


def test_what_runs_on_devices_is_not_compared_with_the_machines_memory(
    machine: Machine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = this_machine()
    with_gpu = replace(here, capacity={**here.capacity, GPU: Decimal(1)})
    monkeypatch.setattr("rollcall_local.machine_check.this_machine", lambda: with_gpu)
    machine.roles["trainer"] = report(parameters=10**13)
    assert machine.check(written(tmp_path, resources={"limits": {"nvidia.com/gpu": "1"}})) == 0
    assert "by estimate" in capsys.readouterr().out


def with_claim(folder: Path, *more: dict[str, Any]) -> str:
    body = yaml.safe_load((EXAMPLES / "reverse.yaml").read_text())
    volume = {"persistentVolumeClaim": {"claimName": "saved"}}
    body["spec"]["trainer"]["checkpoint"] = {"everySteps": 5, "volume": volume}
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all([body, *more]))
    return str(file)


def test_a_claim_is_given_or_was_kept_by_an_earlier_run(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.check(with_claim(tmp_path)) == 1
    assert "PersistentVolumeClaim saved is not in these manifests" in capsys.readouterr().out
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "saved"},
        "spec": {},
    }
    assert machine.check(with_claim(tmp_path, claim)) == 0
    kept = tmp_path / "runs" / "reverse" / "claims" / "default" / "saved"
    assert not kept.exists(), "a check makes no volume that stays"
    kept.mkdir(parents=True)
    assert machine.check(with_claim(tmp_path)) == 0


def test_nothing_is_estimated_of_a_trainer_of_the_users_own(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = external_job()
    file = tmp_path / "external.yaml"
    file.write_text(yaml.safe_dump(body))
    machine.roles["trainer"] = report(right=["spec.model.path: fine"], parameters=100)
    assert machine.check(str(file)) == 0
    out = capsys.readouterr().out
    assert "right: RLJob bad: spec.model.path: fine\n" in out
    assert "memory" not in out
