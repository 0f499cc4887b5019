"""The programs of workers: an error is one line, with an exit code that says whose fault it is."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import EngineRef, ReferenceConfig, RewardModelConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.wire.json_codec import encode
from rollcall_runtime import cli
from rollcall_runtime.worker.environment import TrainerEnvironment
from rollcall_runtime.worker.errors import FencedError
from rollcall_runtime.worker.memory_errors import TRAINER_MEMORY
from rollcall_runtime.worker.program import guarded
from tests.unit.rollcall_runtime.containers import use_container
from tests.unit.rollcall_runtime.jobs import job_config, pool_config


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container's environment; returns its termination log."""
    return use_container(tmp_path, monkeypatch)


WRONG_ROLLOUTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"reward_function": "no_such_module:reward"},
        {},
        "spec.reward.function: cannot import 'no_such_module'",
    ),
    (
        {"reward_function": "rollcall_runtime.tasks.reverse:nothing"},
        {},
        "spec.reward.function: module 'rollcall_runtime.tasks.reverse' has no 'nothing'",
    ),
    ({}, {"engine": EngineRef("vllmm")}, "spec.rollouts[].engine.name: unknown inference engine"),
    (
        {},
        {"engine": EngineRef("tiny", {"concurrency": 0})},
        "spec.rollouts[].engine.config: concurrency must be at least 1",
    ),
    (
        {},
        {"engine": EngineRef("tiny", {"maxToken": 6})},
        "spec.rollouts[].engine.config.maxToken: unknown setting",
    ),
    ({"model": "builtin:reverse-big"}, {}, "spec.model.path: unknown 'builtin:reverse-big'"),
    (
        {"weight_sync": replace(job_config().weight_sync, engine="glu")},
        {},
        "spec.weightSync.engine: unknown weight-sync engine 'glu'",
    ),
    (
        {"weight_sync": replace(job_config().weight_sync, pause_mode="Stop")},
        {},
        "spec.weightSync.pauseMode: 'Stop' is not one of Abort, Keep, Wait",
    ),
]


@pytest.mark.parametrize(("job", "pool", "message"), WRONG_ROLLOUTS)
def test_a_rollout_names_the_wrong_field_of_the_spec(
    container: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    job: dict[str, Any],
    pool: dict[str, Any],
    message: str,
) -> None:
    values = {name: value for name, value in job.items() if name != "weight_sync"}
    config = job_config(**values)
    if "weight_sync" in job:
        config = replace(config, weight_sync=job["weight_sync"])
    monkeypatch.setenv(pod_contract.CONFIG, json.dumps(encode(config)))
    monkeypatch.setenv(pod_contract.POOL_CONFIG, json.dumps(encode(pool_config(**pool))))
    assert cli.rollout([]) == ExitCode.BAD_CONFIG
    assert container.read_text().startswith(message)
    assert message in capfd.readouterr().err


WRONG_TRAINERS: list[tuple[dict[str, Any], str]] = [
    (
        {"external": True, "data": DataConfig(())},
        "spec.trainer.kind: is External, and the container's command is rollcall-trainer",
    ),
    (
        {"reward_model": RewardModelConfig("/models/none")},
        "spec.rewardModel.path: '/models/none' is ",
    ),
    (
        {"data": DataConfig(sources=(DataSource("builtin:forward"),))},
        "spec.data.prompts: unknown 'builtin:forward'",
    ),
    ({"trainer_engine": EngineRef("fsdp9")}, "spec.trainer.engine.name: unknown training engine"),
    (
        {"trainer_engine": EngineRef("fsdp2", {"minibatches": 0})},
        "spec.trainer.engine.config: minibatches must be at least 1",
    ),
    (
        {"algorithm": {"settings": preset("dapo"), "deterministic": True}},
        "spec.algorithm.settings.dynamicSampling: cannot",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_TRAINERS)
def test_a_trainer_names_the_wrong_field_of_the_spec(
    container: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv(pod_contract.CONFIG, json.dumps(encode(job_config(**changes))))
    assert cli.trainer([]) == ExitCode.BAD_CONFIG
    assert container.read_text().startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": ReferenceConfig(model="/models/none")}, "spec.reference.path: '/models/no"),
        ({"model": "builtin:reverse-big"}, "spec.model.path: unknown 'builtin:reverse-big'"),
        (
            {"trainer_engine": EngineRef("fsdp2", {"precision": "fp7"})},
            "spec.trainer.engine.config: precision must be one of fp32, bf16",
        ),
    ],
)
def test_a_reference_pod_names_the_wrong_field_of_the_spec(
    container: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv(pod_contract.CONFIG, json.dumps(encode(job_config(**changes))))
    assert cli.reference([]) == ExitCode.BAD_CONFIG
    assert container.read_text().startswith(message)


def test_a_missing_variable_is_reported_before_torch_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from rollcall_runtime.cli import rollout; code = rollout([]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    workloads = str(Path(cli.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": workloads},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == ExitCode.BAD_CONFIG, done.stderr
    assert done.stderr.startswith("ROLLCALL_CONFIG: is not set")


def test_the_process_that_starts_a_pods_ranks_does_without_torch(
    container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def run(settings: TrainerEnvironment, _: object) -> int:
        started.append(settings.rank)
        return 3

    monkeypatch.setattr("rollcall_runtime.train.local_ranks.run_local_ranks", run)
    config = job_config(trainer_processes=2)
    monkeypatch.setenv(pod_contract.CONFIG, json.dumps(encode(config)))
    assert cli.trainer([]) == 3, "the ranks' exit code is the container's"
    assert started == [0]
    program = "import sys, rollcall_runtime.cli; assert 'torch' not in sys.modules"
    workloads = str(Path(cli.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": workloads}, timeout=30, check=True
    )


def test_a_crash_is_worth_a_restart(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr("rollcall_runtime.rollout.app.run", fail)
    assert cli.rollout([]) == ExitCode.FAILED
    first, *rest = container.read_text().splitlines()
    assert re.fullmatch(r"RuntimeError: the disk is on fire \(test_cli\.py:\d+ in fail\)", first)
    assert rest[-1] == "RuntimeError: the disk is on fire", "the traceback follows"


@pytest.mark.parametrize(
    ("code", "expected"), [(None, ExitCode.FAILED), (0, ExitCode.FAILED), ("no", 1), (3, 3)]
)
def test_user_code_that_calls_sys_exit_fails_the_worker(
    container: Path, monkeypatch: pytest.MonkeyPatch, code: str | int | None, expected: int
) -> None:
    def run(*_: object) -> None:
        sys.exit(code)

    monkeypatch.setattr("rollcall_runtime.rollout.app.run", run)
    assert cli.rollout([]) == expected
    assert re.match(r"SystemExit.* \(test_cli\.py:\d+ in run\)", container.read_text())


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        cli.trainer(["--help"])
    assert done.value.code == 0
    assert "64 BAD_CONFIG" in capsys.readouterr().out


def test_a_superseded_trainer_exits_with_a_code_of_its_own() -> None:
    def superseded() -> int:
        raise FencedError("another coordinator has taken over this job")

    assert guarded(superseded, TRAINER_MEMORY) == ExitCode.FENCED


STUCK = """
import sys, threading, time
from types import ModuleType, SimpleNamespace
from rollcall_runtime import cli
from rollcall_runtime.worker import environment

def run(settings, fields):
    threading.Thread(target=time.sleep, args=(600,)).start()
    print("all is saved")

app = sys.modules["rollcall_runtime.train.app"] = ModuleType("app")
app.run = run
cli.configure_job_logs = lambda *_: {}
job = SimpleNamespace(trainer_processes=1, supervised=None, external=False)
settings = SimpleNamespace(job=job, pod=None, starts_ranks=False)
environment.read_trainer = lambda _: settings
sys.argv = ["rollcall-trainer"]
cli.trainer_program()
"""


def test_a_program_ends_although_a_thread_of_a_library_goes_on() -> None:
    """What threads do while the interpreter is taken down has made torch abort with all done."""
    workloads = str(Path(cli.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", STUCK],
        env={"PYTHONPATH": workloads},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (ExitCode.OK, "all is saved\n"), done.stderr
