"""Rows that a job's reward cannot use are refused before the first step, with file and line."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import (
    EvaluationConfig,
    JobConfig,
    RewardPart,
    RewardScoringConfig,
    RewardStyle,
)
from rollcall_runtime.data.json_lines import JsonLines
from rollcall_runtime.train.job_prompts import open_held_out, open_job_prompts, with_steps
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_tiny_model
from tests.unit.rollcall_runtime.data.character_tokenizer import character_model
from tests.unit.rollcall_runtime.jobs import job_config

GOOD = {"prompt": "two and two", "answer": "four"}
GYM = {"name": "chain_sum", "config": {}, "number": 3}


def job(tmp_path: Path, rows: list[Any], function: str, **config: Any) -> JobConfig:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return replace(
        job_config(),
        data=DataConfig((DataSource(str(path)),)),
        reward_function=function,
        reward_scoring=RewardScoringConfig(config=config),
    )


def refused(found: JobConfig) -> str:
    with pytest.raises(SpecError) as caught:
        open_job_prompts(found, character_model())
    assert caught.value.field == "spec.data.prompts"
    return caught.value.problem


@pytest.mark.parametrize("function", ["exact-match", "math-verify"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "null"), (["four"], "['four']"), ({"truth": "four"}, "{'truth': 'four'}")],
)
def test_an_answer_that_is_no_scalar_is_refused_with_file_and_line(
    tmp_path: Path, function: str, value: Any, shown: str
) -> None:
    problem = refused(job(tmp_path, [GOOD, GOOD | {"answer": value}], function))
    assert problem.startswith(f"{tmp_path}/p.jsonl:2: the reward cannot use this row: ")
    assert f"spec.reward.config.column: 'answer' holds {shown}; the answer must be" in problem
    assert ("; name the part that is, such as answer.truth" in problem) == isinstance(value, dict)


def test_a_path_leads_to_the_answer(tmp_path: Path) -> None:
    row = {"prompt": "two", "reward_model": {"ground_truth": "four", "style": "rule"}}
    found = job(tmp_path, [row], "exact-match", column="reward_model.ground_truth")
    assert open_job_prompts(found, character_model()).prompt(0) is not None
    problem = refused(job(tmp_path, [row], "exact-match", column="reward_model.answer"))
    assert "'reward_model' has no 'answer'; it has: ground_truth, style" in problem


def test_tables_are_checked_too(tmp_path: Path) -> None:
    table = {"prompt": ["a", "b"], "reward_model": [{"truth": "four"}, {"truth": None}]}
    parquet.write_table(pa.table(table), tmp_path / "p.parquet")
    found = replace(
        job(tmp_path, [GOOD], "exact-match", column="reward_model.truth"),
        data=DataConfig((DataSource(f"{tmp_path}/p.parquet"),)),
    )
    assert "p.parquet, row 2: the reward cannot use this row: " in refused(found)


@pytest.mark.parametrize(
    ("row", "function", "problem"),
    [
        ({"tests": "[]"}, "code", "column 'tests' must hold a list of 1 to 100, not '[]'"),
        ({"tests": [{"input": 1, "output": ""}]}, "code", "must be a text, not 1"),
        ({"reasoning_gym": {}, "question": "?"}, "reasoning-gym", "'reasoning_gym' holds {}"),
        ({"reasoning_gym": GYM}, "reasoning-gym", "the row has no column 'question'"),
    ],
)
def test_other_rewards_refuse_what_they_cannot_use(
    tmp_path: Path, row: Any, function: str, problem: str
) -> None:
    assert problem in refused(job(tmp_path, [{"prompt": "a", **row}], function))


def test_a_column_that_does_not_travel_is_refused(tmp_path: Path) -> None:
    found = job(tmp_path, [GOOD], "exact-match", column="solution")
    assert "p.jsonl:1: the reward reads the column 'solution', which the row" in refused(found)
    source = DataSource(f"{tmp_path}/p.jsonl", columns=("prompt",))
    found = replace(job(tmp_path, [GOOD], "exact-match"), data=DataConfig((source,)))
    assert "correct spec.reward.config, or the `columns` of the source" in refused(found)


def test_each_part_of_a_sum_and_the_rows_of_evaluations_are_checked(tmp_path: Path) -> None:
    found = job(tmp_path, [GOOD], "")
    parts = (RewardPart("own", "m:f"), RewardPart("right", "exact-match", config={"column": "a"}))
    found = replace(found, reward_scoring=RewardScoringConfig(parts=parts))
    assert "correct spec.reward.parts[1].config" in refused(found)

    held_out = EvaluationConfig(every_steps=1, data=DataConfig((DataSource("builtin:reverse"),)))
    found = replace(job(tmp_path, [GOOD], "exact-match"), evaluation=held_out)
    with pytest.raises(SpecError, match=r"^spec.held: builtin:reverse: .*no column 'answer'"):
        open_held_out(found, character_model(), field="spec.held")


def test_functions_of_trl_and_verl_get_what_these_give(tmp_path: Path) -> None:
    def styled(row: Any, style: RewardStyle) -> JobConfig:
        found = job(tmp_path, [row], "m:f")
        return replace(found, reward_scoring=RewardScoringConfig(style=style))

    verl = {"prompt": "a", "data_source": "gsm8k", "reward_model": {"ground_truth": "4"}}
    for row, style in ((verl, RewardStyle.VERL), (GOOD, RewardStyle.TRL)):
        assert open_job_prompts(styled(row, style), character_model()).prompt(0) is not None
    for lacking in ("data_source", "reward_model"):
        row = {name: value for name, value in verl.items() if name != lacking}
        assert f"no column '{lacking}'" in refused(styled(row, RewardStyle.VERL))
    unseen = replace(
        styled(GOOD, RewardStyle.TRL),
        data=DataConfig((DataSource(f"{tmp_path}/p.jsonl", columns=("answer",)),)),
    )
    assert (
        "the column 'prompt', which the row does not bring; correct spec.reward.style"
        in refused(unseen)
    )


@pytest.mark.parametrize(("epochs", "steps"), [(1, 3), (2, 5), (4, 10)])
def test_epochs_are_passes_over_the_prompts(tmp_path: Path, epochs: int, steps: int) -> None:
    def lasting(found: JobConfig, **lasts: Any) -> JobConfig:
        algorithm = replace(found.algorithm, prompts_per_step=4, max_steps=0)
        model = str(write_tiny_model(tmp_path / "model"))
        return replace(found, model=model, algorithm=replace(algorithm, **lasts))

    found = job(tmp_path, [GOOD] * 10, "m:f")
    assert with_steps(lasting(found, epochs=epochs)).algorithm.max_steps == steps
    assert with_steps(lasting(found, max_steps=7)).algorithm.max_steps == 7
    endless = replace(found, data=DataConfig((DataSource("builtin:reverse"),)))
    with pytest.raises(SpecError, match=r"^spec.algorithm.epochs: 'builtin:reverse' has prompts w"):
        with_steps(lasting(endless, epochs=epochs))


def test_a_function_of_ones_own_may_read_what_it_likes(tmp_path: Path) -> None:
    for function in ("m:f", "environment", "regex", "of.another.image"):
        found = job(tmp_path, [{"prompt": "a", "answer": None}], function)
        if function == "regex":
            found = replace(found, reward_scoring=RewardScoringConfig({"pattern": "a"}))
        assert open_job_prompts(found, character_model()).prompt(0) is not None


def test_rows_are_read_once_for_all_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of a million rows begins sooner."""
    scanned: list[Path] = []
    scan = JsonLines.scan

    def counted(rows: JsonLines, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        scanned.append(tmp_path)
        return scan(rows, columns)

    monkeypatch.setattr(JsonLines, "scan", counted)
    found = job(tmp_path, [GOOD] * 3, "exact-match")
    open_job_prompts(found, character_model()).close()
    assert len(scanned) == 1
    with_steps(replace(found, algorithm=replace(found.algorithm, epochs=1)))
    assert len(scanned) == 1, "counting reads no row"


def test_a_row_with_a_date_is_checked_as_the_reward_gets_it(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": date(2026, 11, day)} for day in (1, 2)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    found = job(tmp_path, [GOOD], "exact-match")
    found = replace(found, data=DataConfig((DataSource(f"{tmp_path}/p.parquet"),)))
    prompt = open_job_prompts(found, character_model()).prompt(0)
    assert prompt is not None
    assert prompt.row["answer"] in {"2026-11-01", "2026-11-02"}
