"""A model's tokenizer: text to tokens and back, chats by its template, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollcall_runtime.models.end_tokens import end_tokens
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.tokenizer import ModelTokenizer, open_tokenizer
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import LETTERS, tiny_tokenizer, write_tiny_model
from tests.unit.rollcall_runtime.data.character_tokenizer import appending_model

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "m")


@pytest.fixture
def tokenizer(directory: Path) -> ModelTokenizer:
    return open_tokenizer(open_model(str(directory)))


def edit(directory: Path, name: str, **change: Any) -> None:
    file = directory / name
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def refusal(directory: Path) -> str:
    with pytest.raises(SpecError) as caught:
        open_tokenizer(open_model(str(directory)))
    assert caught.value.field == "spec.model.path"
    return caught.value.problem


def test_text_comes_back_from_its_tokens(tokenizer: ModelTokenizer) -> None:
    assert len(tokenizer.encode("a cat")) == 5
    assert tokenizer.decode(tokenizer.encode("a cat")) == "a cat"


def test_text_that_is_no_unicode_is_refused(tokenizer: ModelTokenizer) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        tokenizer.encode("a \ud83d cat")  # half of a pair, which JSON may hold


def test_special_tokens_are_shown_when_asked(tokenizer: ModelTokenizer) -> None:
    tokens = [*tokenizer.encode("a"), 2]
    assert tokenizer.decode(tokens) == "a"
    assert tokenizer.decode(tokens, special=True) == "a<|im_end|>"


def test_a_chat_is_written_by_the_template(tokenizer: ModelTokenizer) -> None:
    prompt = "<|im_start|>user\nhi<|im_end|>\n"
    assert tokenizer.chat_text(CHAT[:1]) == f"{prompt}<|im_start|>assistant\n"
    answer = "<|im_start|>assistant\nyo<|im_end|>\n"
    assert tokenizer.chat_text(CHAT, answer_follows=False) == prompt + answer
    tokens = tokenizer.chat_tokens(CHAT, answer_follows=False)
    assert tokenizer.decode(tokens, special=True) == prompt + answer
    assert tokens.count(2) == 2


def test_it_knows_what_ends_a_response(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    tokenizer = open_tokenizer(open_model(str(directory)))
    assert tokenizer.eos == {2, 7}


def test_the_tokenizers_own_end_token_ends_a_response_beside_the_models(directory: Path) -> None:
    edit(directory, "tokenizer_config.json", eos_token="<|im_start|>")
    source = open_model(str(directory))
    assert source.named_eos == {2}
    assert end_tokens(source) == open_tokenizer(source).eos == {1, 2}
    assert open_tokenizer(source).end == 1, "which the tokenizer's texts end with"


def test_a_text_is_learnt_to_end_as_the_model_says_where_the_tokenizer_does_not(
    directory: Path,
) -> None:
    edit(directory, "tokenizer_config.json", eos_token=None)
    (directory / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    tokenizer = open_tokenizer(open_model(str(directory)))
    assert tokenizer.eos == {2, 7}
    assert tokenizer.end == 2


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("ab", "<s>ab"),
        ("ab<|im_end|>", "<s>ab<|im_end|>"),
        ("<|im_end|>ab", "<s><|im_end|>ab"),
    ],
)
def test_a_prompt_has_what_the_tokenizer_writes_before_it_and_no_end_behind_it(
    text: str, prompt: str
) -> None:
    tokenizer = appending_model().tokenizer
    assert tokenizer.library(text)["input_ids"][-1] == 2
    assert tokenizer.decode(tokenizer.prompt_tokens(text), special=True) == prompt


def test_a_prompt_keeps_its_own_end_token_where_the_tokenizer_adds_none(
    tokenizer: ModelTokenizer,
) -> None:
    assert tokenizer.prompt_tokens("a<|im_end|>") == tokenizer.encode("a<|im_end|>")


def test_messages_that_the_template_refuses_are_an_error_of_the_data(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    tokenizer = open_tokenizer(open_model(str(directory)))
    with pytest.raises(ValueError, match="refuses these messages: roles must alternate"):
        tokenizer.chat_text(CHAT)


def test_without_a_chat_template_text_and_tokens_still_work(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    tokenizer = open_tokenizer(open_model(str(directory)))
    assert tokenizer.encode("a")
    with pytest.raises(SpecError) as caught:
        tokenizer.chat_text(CHAT)
    assert str(caught.value) == (
        f"spec.model.path: the tokenizer in '{directory}' has no chat template, which messages "
        "need; add chat_template.jinja to it, or give prompts as text or tokens"
    )


def test_a_larger_tokenizer_is_another_models(directory: Path, tmp_path: Path) -> None:
    small = write_tiny_model(tmp_path / "small", characters=LETTERS)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (small / name).write_bytes((directory / name).read_bytes())
    assert refusal(small) == (
        f"the tokenizer in '{small}' has tokens up to 100, but the model's vocabulary ends at 15: "
        "it is another model's; copy model and tokenizer from one place"
    )


def test_a_tokenizer_without_the_models_end_token_is_another_models(directory: Path) -> None:
    edit(directory, "generation_config.json", eos_token_id=[2, 103])
    assert "does not know the model's token 103, which ends a response" in refusal(directory)


def test_a_model_without_tokenizer_takes_tokens_alone(directory: Path) -> None:
    for file in directory.glob("tokenizer*"):
        file.unlink()
    assert refusal(directory) == (
        f"the directory '{directory}' has no tokenizer, which text and messages need; give prompts "
        "as tokens, or name a model that has one"
    )
    with pytest.raises(SpecError, match=r"the model 'builtin:reverse-tiny' has no tokenizer"):
        open_tokenizer(open_model("builtin:reverse-tiny"))


@pytest.mark.parametrize("text", ["{oops", "{}", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_refused(directory: Path, text: str) -> None:
    (directory / "tokenizer.json").write_text(text)
    assert refusal(directory).startswith(f"cannot read the tokenizer in '{directory}': ")


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(1000000000) %}{{ i }}{% endfor %}",
        "{{ messages[0]['content'].__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ '%9999999999999999999d' % 1 }}",
    ],
    ids=["endless", "escape", "division", "recursion", "width"],
)
def test_a_template_that_fails_in_any_way_refuses_the_messages(template: str) -> None:
    library = tiny_tokenizer()
    library.chat_template = template
    tokenizer = ModelTokenizer(Path("/model"), library, frozenset({2}))
    with pytest.raises(ValueError, match="the chat template refuses these messages: "):
        tokenizer.chat_text([{"role": "user", "content": "hi"}])
