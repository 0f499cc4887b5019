"""A job names its model by a path; the error of a wrong one names field, file and remedy."""

import json
import re
from pathlib import Path

import pytest

from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_tiny_model


def refusal(path: Path | str) -> str:
    with pytest.raises(SpecError) as caught:
        open_model(str(path))
    assert caught.value.field == "spec.model.path"
    return caught.value.problem


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere").endswith(
        "is neither builtin:..., nor a directory in this container, nor an id such as owner/name; "
        "is it mounted?"
    )


def test_a_directory_without_configuration_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"the directory '{tmp_path}' has no config.json"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{oops", "cannot read"),
        ("[]", "holds no JSON object"),
        ('{"kind": "llama"}', "has neither a model_type of transformers nor the kind 'tiny'"),
        ('{"model_type": "gpt-17"}', "model_type is 'gpt-17', of which transformers .* knows no"),
        ('{"model_type": "vit"}', "model_type is 'vit', of which transformers .* no language"),
        ('{"model_type": ["qwen3"]}', "model_type is .*, of which transformers"),
        ('{"model_type": "qwen3"}', "has no vocab_size, so it is no language model's"),
        ('{"model_type": "qwen3", "vocab_size": "many"}', "vocab_size is 'many', not a positive"),
        (
            '{"model_type": "qwen3", "vocab_size": 8, "max_position_embeddings": 0}',
            "max_position_embeddings is 0, not a positive",
        ),
        (
            '{"model_type": "qwen3", "vocab_size": 8, "eos_token_id": "</s>"}',
            "eos_token_id is '</s>', not a token",
        ),
        (
            '{"model_type": "qwen3", "vocab_size": 8, "quantization_config": {"bits": 4}}',
            "the weights are quantized and cannot be trained; name an unquantized copy",
        ),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    problem = refusal(tmp_path)
    assert "config.json" in problem
    assert re.search(message, problem), problem


def test_generation_settings_say_which_tokens_end_a_response(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    assert open_model(str(directory)).eos == {2}
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert open_model(str(directory)).eos == {5, 6}
