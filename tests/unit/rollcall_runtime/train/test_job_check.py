"""What is looked at in the containers of a job before it is started."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import (
    EngineRef,
    EvaluationConfig,
    JobConfig,
    RewardErrorConfig,
    RewardModelConfig,
    RewardScoringConfig,
)
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_protocol.wire.json_codec import encode
from rollcall_runtime.train.job_check import ContainerReport, check_rollout, check_trainer, main
from tests.process.engines.tiny_models import write_tiny_model
from tests.unit.rollcall_runtime.jobs import external_job_config, job_config, pool_config

PROMPT: dict[str, Any] = {"tokens": [0, 3, 4, 5, 6, 7, 1], "row": {}}


def data(path: Path, *rows: object) -> DataConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig((DataSource(str(path)),))


def test_the_model_and_the_first_rows_are_shown() -> None:
    report = check_trainer(job_config())
    assert report.wrong == []
    assert report.parameters == 102_592
    assert [len(prompt["tokens"]) for prompt in report.prompts] == [7, 7, 7]
    assert report.right[0].startswith("spec.model.path: builtin:reverse-tiny (tiny) takes up to 13")
    assert report.right[1].startswith("spec.data: 'builtin:reverse, number 0': used, 7 tokens:")


def test_a_model_that_is_not_there_is_named_by_its_field() -> None:
    job = job_config(model="/no/such", reward_model=RewardModelConfig("/nor/this"))
    report = check_trainer(job)
    assert [line.split(":")[0] for line in report.wrong] == [
        "spec.model.path",
        "spec.rewardModel.path",
    ]
    assert report.parameters == 0


def test_a_row_that_the_model_does_not_know_is_named(tmp_path: Path) -> None:
    job = job_config(data=data(tmp_path / "p.jsonl", {"tokens": [1]}, {"tokens": [99]}))
    (line,) = check_trainer(job).wrong
    assert f"{tmp_path}/p.jsonl:2: the model knows the tokens 0 to 12, not 99" in line


def test_evaluations_are_read_even_if_the_data_is_wrong(tmp_path: Path) -> None:
    evaluation = EvaluationConfig(5, DataConfig((DataSource(str(tmp_path / "none.jsonl")),)))
    job = job_config(data=data(tmp_path / "p.jsonl"), evaluation=evaluation)
    first, second = check_trainer(job).wrong
    assert "holds no row" in first
    assert second.startswith("spec.evaluation.")


def test_a_supervised_job_shows_what_is_learnt(tmp_path: Path) -> None:
    rows = data(tmp_path / "a.jsonl", {"tokens": [0, 4, 3, 1], "completion": [3, 4, 2]})
    report = check_trainer(job_config(data=rows, supervised=SupervisedConfig()))
    assert report.wrong == []
    assert report.right[1].endswith("tokens [0, 4, 3, 1, 3, 4, 2]; learnt: [3, 4, 2]")


async def test_the_reward_of_two_answers_is_shown() -> None:
    report = await check_rollout(job_config(), pool_config(), [PROMPT])
    assert report.wrong == []
    assert report.right[-1] == (
        "spec.reward: an answer gets 0 for its prompt again, 0 for nothing but the end"
    )


async def test_a_reward_that_raises_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_reward.py").write_text("def reward(prompt, response):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    job = job_config(
        reward_function="broken_reward:reward", reward_errors=RewardErrorConfig(timeout=60)
    )
    (line,) = (await check_rollout(job, pool_config(), [PROMPT])).wrong
    assert line.startswith("spec.reward: raised: ZeroDivisionError: division by zero")
    assert "broken_reward.py:2), for an answer that is its prompt again" in line


async def test_a_reward_and_an_engine_that_are_not_there_are_both_named() -> None:
    job = job_config(reward_function="no_such_module:reward")
    pool = pool_config(engine=EngineRef("none"))
    engine, reward = (await check_rollout(job, pool, [])).wrong
    assert "no_such_module" in reward
    assert "'none'" in engine


def answered(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], config: str
) -> ContainerReport:
    monkeypatch.setenv(pod_contract.CONFIG, config)
    monkeypatch.setattr("sys.stdin", io.StringIO("[]"))
    assert main(["trainer"]) == 0
    return ContainerReport(**json.loads(capfd.readouterr().out))


def test_the_report_is_json(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job: JobConfig = job_config()
    report = answered(monkeypatch, capfd, json.dumps(encode(job)))
    assert report.parameters == 102_592


def test_a_configuration_of_another_release_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    report = answered(monkeypatch, capfd, "{}")
    assert "operator and image must be of the same release" in report.wrong[0]


def test_text_of_the_data_cannot_write_to_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2J.jsonl"
    report = check_trainer(job_config(data=data(path, {"tokens": [0, 1]})))
    assert report.wrong == []
    assert not any("\x1b" in line for line in report.right)


async def test_of_an_external_job_models_and_engine_alone_are_looked_at() -> None:
    trainer = check_trainer(external_job_config())
    assert trainer.wrong == []
    assert [line.split(":")[0] for line in trainer.right] == ["spec.model.path"]
    assert trainer.parameters == 102_592
    rollout = await check_rollout(external_job_config(), pool_config(), [])
    assert rollout.wrong == []
    assert [line.split(":")[0] for line in rollout.right] == ["spec.rollouts"]


def test_what_a_worker_warns_of_is_in_the_report(tmp_path: Path) -> None:
    rows = data(tmp_path / "p.jsonl", {"tokens": [0] * 9, "own": {"maxTokens": 5}})
    sampling = SamplingConfig(column="own")
    report = check_trainer(job_config(data=rows, algorithm={"sampling": sampling}))
    assert report.wrong == []
    (warning,) = report.warnings
    assert warning.startswith(f"{tmp_path}/p.jsonl:1: its prompt of 9 tokens leaves 4 of the 13 of")


async def test_a_pattern_that_asks_for_what_rewards_do_not_see_is_in_the_report(
    tmp_path: Path,
) -> None:
    job = job_config(
        model=str(write_tiny_model(tmp_path / "m")),
        reward_function="regex",
        reward_scoring=RewardScoringConfig({"pattern": "a<\\|im_end\\|>"}),
    )
    report = await check_rollout(job, pool_config(engine=EngineRef("transformers")), [])
    assert report.wrong == []
    (warning,) = report.warnings
    assert warning.startswith("spec.reward.config.pattern: ")
    assert "asks for <|im_end|>" in warning
