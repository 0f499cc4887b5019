"""The example of an environment: a calculator that a response may ask once."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.data.prompt_source import open_prompts
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.tasks.environments.user_environment import Step, load_environment

FOLDER = Path(__file__).parents[3] / "examples" / "calculator"
SEP, EOS = 1, 2
TWO_AND_THREE = {"first": 2, "second": 3}
FIVE = 8  # the token of the digit 5


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "calculator", raising=False)


async def steps(*turns: list[int], **config: Any) -> list[Step]:
    spec = yaml.safe_load((FOLDER / "rljob.yaml").read_text())["spec"]
    maker = load_environment(spec["environment"]["function"], config, directory=None)
    environment = maker.new()
    assert (await environment.reset((), TWO_AND_THREE, 0)).observation is None
    return [await environment.step(turn) for turn in turns]


async def test_a_call_and_the_right_answer_get_the_full_reward() -> None:
    call, answer = await steps([SEP, EOS], [FIVE, EOS])
    assert call == Step([FIVE], 0.2)
    assert answer == Step(None, 0.8, done=True)


async def test_only_the_first_call_is_answered() -> None:
    _, again = await steps([SEP, EOS], [SEP, EOS], reward_of_call=0.5)
    assert again == Step(None, 0.0, done=True)


async def test_the_right_answer_without_a_call_gets_less() -> None:
    assert await steps([FIVE, EOS]) == [Step(None, 0.8, done=True)]


def test_the_file_of_prompts_is_what_the_script_writes() -> None:
    made = runpy.run_path(str(FOLDER / "make_prompts.py"))["prompts"]()
    assert (FOLDER / "prompts.jsonl").read_text().splitlines() == made


def test_the_model_knows_every_digit_and_the_row_names_both() -> None:
    data = DataConfig(sources=(DataSource(str(FOLDER / "prompts.jsonl")),))
    prompts = open_prompts(data, model=ModelInput.of(open_model("builtin:reverse-tiny")))
    for index in range(55):
        prompt = prompts.prompt(index)
        assert prompt is not None
        _, first, second, _ = prompt.tokens
        assert (first - 3, second - 3) == (prompt.row["first"], prompt.row["second"])
        assert prompt.row["first"] + prompt.row["second"] < 10
