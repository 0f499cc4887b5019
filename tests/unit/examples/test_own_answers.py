"""The example of a supervised job: its answers are right, and fit the model."""

from pathlib import Path

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.data_preview import preview_supervised

FILE = Path(__file__).parents[3] / "examples" / "own-answers" / "answers.jsonl"
BOS, SEP, EOS = 0, 1, 2


def test_the_model_learns_the_sorted_symbols_of_each_row() -> None:
    model = ModelInput.of(open_model("builtin:reverse-tiny"))
    rows = preview_supervised(DataConfig((DataSource(str(FILE)),)), model, count=1000)
    assert len({row.place for row in rows}) == 1000
    for row in rows:
        prompt, answer = list(row.tokens[:7]), list(row.tokens[7:])
        assert (prompt[0], prompt[-1]) == (BOS, SEP)
        assert answer == [*sorted(prompt[1:-1]), EOS]
        assert row.learnt == [str(answer)]
