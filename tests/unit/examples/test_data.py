"""The example rows of docs/data.md are what a job, or supervised training, can read."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_runtime.train.data_preview import preview_prompts, preview_supervised
from tests.unit.rollcall_runtime.data.character_tokenizer import character_model, no_tokenizer

if TYPE_CHECKING:
    from rollcall_runtime.data.model_input import ModelInput

FOLDER = Path(__file__).parents[3] / "examples" / "data"


@pytest.mark.parametrize("name", ["chats", "completions", "tokens"])
def test_rows_with_answers_are_learnt(name: str) -> None:
    data = DataConfig((DataSource(str(FOLDER / f"{name}.jsonl")),))
    model: ModelInput = no_tokenizer() if name == "tokens" else character_model()
    for row in preview_supervised(data, model, count=3):
        assert row.outcome == "used"
        assert row.learnt


def test_prompts_have_an_answer_for_the_reward() -> None:
    data = DataConfig((DataSource(str(FOLDER / "prompts.jsonl")),))
    rows = preview_prompts(data, character_model(), count=3)
    assert {row.row["answer"] for row in rows} == {"eert", "revir", "enots"}


def test_every_example_is_tested() -> None:
    names = {path.stem for path in FOLDER.iterdir()}
    assert names == {"chats", "completions", "tokens", "prompts"}
