"""Each token has its own text, and together they are that of all."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rollcall_runtime.train.samples.token_text import TokenText


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tokenizer whose tokens are single bytes, and the special tokens <s> and </s>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def tokens(directory: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_special_tokens_are_visible(directory: Path) -> None:
    found = TokenText(directory).pieces(tokens(directory, "<s>a b</s>"))
    assert found == ["<s>", "a", " ", "b", "</s>"]


def test_a_character_of_several_tokens_stands_at_the_last(directory: Path) -> None:
    found = TokenText(directory).pieces(tokens(directory, "xé!"))
    assert found == ["x", "", "é", "!"]


def test_a_character_that_is_cut_off_is_marked(directory: Path) -> None:
    found = TokenText(directory).pieces(tokens(directory, "xé")[:2])
    assert found == ["x", "�"]


def test_a_model_without_a_tokenizer_has_numbers() -> None:
    assert TokenText(None).pieces([3, 12]) == ["3 ", "12 "]
    assert TokenText(None).pieces([]) == []


def test_a_tokenizer_that_cannot_be_read_costs_the_text_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    text = TokenText(tmp_path)
    assert text.pieces([3]) == ["3 "]
    assert text.pieces([4]) == ["4 "]
    assert caplog.text.count("recorded responses are numbers of tokens") == 1
