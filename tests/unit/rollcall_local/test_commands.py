"""`rollcall local COMMAND` at a run that has ended: its objects can still be asked for."""

import json
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import yaml

from rollcall_local import runs
from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.folder import ObjectFolder
from rollcall_local.api_server.store import ObjectStore
from rollcall_local.commands import main
from rollcall_local.state_folder import StateFolder, home
from rollcall_operator.kube.resources import CONFIG_MAPS, RL_JOBS
from tests.unit.rollcall_protocol.sample_records import sample_record

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLCALL_LOCAL_HOME", str(tmp_path))
    return tmp_path


def ended(name: str, *, run: str = "") -> StateFolder:
    """A run of examples/reverse.yaml that has ended, with a child of its job, called `name`."""
    folder = StateFolder(home() / (run or name))
    folder.hold()
    kept = ObjectFolder(folder.objects)
    store = ObjectStore(admit=admit, changed=kept.changed)
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / "reverse.yaml").read_text())
    body["metadata"] |= {"name": name, "namespace": "default"}
    job = store.create(RL_JOBS, body)
    status = {"phase": "Failed", "progress": {"step": 7}}
    store.set_status(RL_JOBS, "default", name, {"status": status})
    owner = {
        "apiVersion": "rollcall.dev/v1alpha1",
        "kind": "RLJob",
        "name": name,
        "uid": job["metadata"]["uid"],
    }
    metadata = {"name": f"{name}-trust", "namespace": "default", "ownerReferences": [owner]}
    store.create(CONFIG_MAPS, {"metadata": metadata})
    folder.release()
    return folder


def objects(folder: StateFolder) -> set[str]:
    return {key.plural for key in ObjectFolder(folder.objects).load()}


def test_runs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ended("reverse")
    assert main(["list", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "run": "reverse",
        "process": "",
        "jobs": "reverse Failed",
        "folder": str(folder.path),
    }


def test_without_a_run_the_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "There is no run.\n"


def test_the_status_of_an_ended_run_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    ended("reverse")
    assert main(["status", "reverse", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 7


def test_the_responses_of_an_ended_run_are_read_from_its_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = ended("reverse")
    assert main(["samples", "reverse"]) == 1
    assert "no responses of a job 'reverse' were recorded" in capsys.readouterr().err
    lines = [sample_record(sample=sample, reward=1.0 - sample).line() for sample in range(3)]
    folder.samples("reverse").write_bytes(b"".join(lines))
    assert main(["samples", "reverse", "--worst", "--limit", "2", "-o", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["reward"] for each in found] == [-1.0, 0.0]


def test_a_job_of_an_ended_run_is_deleted_with_its_children() -> None:
    folder = ended("reverse")
    assert main(["delete", "reverse"]) == 0
    assert not objects(folder) & {"rljobs", "configmaps"}


def test_an_ended_run_has_no_kubeconfig_afterwards() -> None:
    folder = ended("reverse")
    assert main(["describe", "reverse"]) == 0
    assert not folder.kubeconfig.exists()
    assert folder.holder() is None


def test_a_run_that_is_not_there_is_an_error_that_lists_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended("reverse")
    assert main(["status", "revers"]) == 1
    assert capsys.readouterr().err == (
        "rollcall local: revers: name one with --run; there are reverse (ended)\n"
    )


def test_the_only_run_with_a_job_of_that_name_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended("reverse", run="demo")
    assert main(["status", "reverse"]) == 0
    assert "reverse" in capsys.readouterr().out
    ended("reverse", run="another")
    assert main(["status", "reverse"]) == 1


def test_a_run_that_is_about_to_end_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ended("reverse")
    folder.hold()
    ending = Timer(0.3, folder.release)
    ending.start()
    assert main(["status", "reverse"]) == 0
    ending.join()
    assert "Failed, step 7" in capsys.readouterr().out


def test_a_run_without_an_api_server_is_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SETTLE_SECONDS", 0.2)
    folder = ended("reverse")
    folder.hold()
    try:
        assert main(["status", "reverse"]) == 1
    finally:
        folder.release()
    assert "the run reverse starts or ends" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_taken_for_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "revers.yaml"]) == 1
    text = capsys.readouterr().err
    assert "revers.yaml: there is no such file, and no such example; there are " in text
    assert "reverse" in text


def test_an_image_needs_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "reverse", "--image", "worker"]) == 1
    assert "--image worker: give NAME=VENV" in capsys.readouterr().err


def test_what_cannot_run_is_refused_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = yaml.safe_load((EXAMPLES / "reverse.yaml").read_text())
    body["spec"]["algorithm"]["maxSteps"] = 0
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(body))
    assert main(["run", str(tmp_path / "job.yaml")]) == 1
    assert "spec.algorithm.maxSteps: must be at least 1" in capsys.readouterr().err
    assert not (tmp_path / "reverse").exists()


def test_a_job_that_is_over_says_how_it_starts_afresh(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended("reverse", run="first")
    assert main(["run", str(EXAMPLES / "reverse.yaml"), "--name", "first"]) == 1
    line = (
        "reverse: is over since an earlier run and stays Failed; to start it from its first step, "
        "`rollcall local delete reverse --run first`, then run it again\n"
    )
    assert line in capsys.readouterr().out
