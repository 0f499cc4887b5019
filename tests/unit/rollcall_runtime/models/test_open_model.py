"""A job names its model by a path; the error of a wrong one names field, file and remedy."""

import json
import re
import shutil
from pathlib import Path

import httpx
import huggingface_hub.constants
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from rollcall_runtime.models.open_model import is_hub_id, open_model
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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
    assert open_model(str(directory)).named_eos == {2}
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert open_model(str(directory)).named_eos == {5, 6}


@pytest.mark.parametrize(("change", "ends"), [({}, {2}), ({"eos_token_id": None}, set())])
def test_a_configuration_that_names_no_end_has_that_of_its_architecture(
    tmp_path: Path, change: dict[str, None], ends: set[int]
) -> None:
    directory = write_tiny_model(tmp_path / "m", "llama")
    (directory / "generation_config.json").unlink()
    values = json.loads((directory / "config.json").read_text())
    del values["eos_token_id"]
    (directory / "config.json").write_text(json.dumps(values | change))
    assert open_model(str(directory)).named_eos == ends


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache on a machine without a network, which holds acme/tiny."""
    folder = tmp_path / "hub" / "models--acme--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "refs" / "old").write_text(COMMIT)
    write_tiny_model(folder / "snapshots" / COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder / "snapshots" / COMMIT


@pytest.mark.parametrize(
    "path", ["acme/tiny", "acme/tiny@main", "acme/tiny@old", f"acme/tiny@{COMMIT}"]
)
def test_a_model_of_the_cache_is_opened(cache: Path, path: str) -> None:
    source = open_model(path)
    assert source.path == path
    assert source.directory == cache
    source.weights()


@pytest.mark.parametrize("path", ["acme/other", "acme/tiny@new"])
def test_offline_a_model_that_is_not_in_the_cache_is_refused(cache: Path, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        open_model(path)
    assert str(caught.value) == (
        f"spec.model.path: {path!r} is not, or not whole, in the cache "
        f"{cache.parents[2]}, and HF_HUB_OFFLINE is set; unset HF_HUB_OFFLINE, or mount a cache or "
        "a directory that holds it"
    )


def test_a_file_that_the_cache_lacks_is_named(cache: Path) -> None:
    shutil.move(cache / "model.safetensors", cache / "elsewhere")
    with pytest.raises(SpecError, match=r"has no model\.safetensors"):
        open_model("acme/tiny")


def test_a_directory_goes_before_an_id(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny_model(tmp_path / "acme" / "tiny", "llama")
    assert open_model("acme/tiny").architecture == "llama"


@pytest.mark.parametrize("path", ["/models/x", "a/b/c", "a b", "", "../x", "a/b@", "./x"])
def test_other_paths_are_no_ids(path: str) -> None:
    assert not is_hub_id(path)


RESPONSE = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GatedRepoError("no", response=RESPONSE), "is gated; accept its terms and give the pods a"),
        (RepositoryNotFoundError("no", response=RESPONSE), "the hub has no model 'acme/tiny', or"),
        (RevisionNotFoundError("no", response=RESPONSE), "'acme/tiny' has no revision 'v1'"),
    ],
)
def test_what_the_hub_refuses_is_an_error_of_the_path(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def refuse(*arguments: object, **named: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(SpecError, match=f"^spec.model.path: .*{message}"):
        open_model("acme/tiny@v1")


def test_a_hub_that_does_not_answer_is_no_error_of_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **named: object) -> str:
        raise LocalEntryNotFoundError("the hub cannot be reached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(OSError, match="cannot be reached"):
        open_model("acme/tiny")
