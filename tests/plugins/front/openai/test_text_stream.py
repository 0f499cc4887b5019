"""Text while tokens come: whole characters, and stop strings left out."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollcall_plugins.front.openai.text_stream import TextStream
from rollcall_runtime.models.tokenizer import ModelTokenizer
from rollcall_runtime.tasks.reward_text import ResponseText, open_decoder
from rollcall_runtime.train.samples.token_text import TokenText
from tests.process.engines.tiny_models import tiny_tokenizer


def byte_tokenizer() -> ModelTokenizer:
    """A token for each byte, as byte-level BPE has it for rare characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    library = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    return ModelTokenizer(Path("/model"), library, frozenset())


def characters() -> ModelTokenizer:
    return ModelTokenizer(Path("/model"), tiny_tokenizer(), frozenset({2}))


@pytest.mark.parametrize("text", ["déjà vu", "日本語", "a 🙂 b", "plain"])
def test_characters_of_several_tokens_come_whole(text: str) -> None:
    tokenizer = byte_tokenizer()
    stream, pieces = TextStream(tokenizer), []
    for token in tokenizer.encode(text):
        pieces.append(stream.add([token]))
        assert "\ufffd" not in pieces[-1]
    assert "".join(pieces) + stream.rest() == text


def bytes_and_words() -> ModelTokenizer:
    """Words, and a token for each byte of what is none of them, as Llama 2 has it."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    vocabulary |= {"\u2581a": 257, "b": 258}
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    return ModelTokenizer(Path("/model"), library, frozenset())


def test_bytes_that_are_no_character_end_no_stream() -> None:
    stream = TextStream(bytes_and_words())
    letter, part = 1 + ord("R"), 1 + 0xA0
    text = "".join(stream.add([token]) for token in (letter, part, 257, 258))
    assert text.startswith("R")
    assert text.endswith(" ab")


LLAMA = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
DECODERS: dict[str, Any] = {
    "llama": decoders.Sequence([*LLAMA, decoders.Strip(" ", 1, 0)]),  # the first space is dropped
    "gemma": decoders.Sequence(LLAMA),
    "t5": decoders.Metaspace(),
}


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(
    "said",
    [
        ("\u2581a", "\u2581a"),
        ("<think>", "\u2581a", "b"),
        ("\u2581a", "</s>", "\u2581a"),
        ("b", "<0xE6>", "<0x97>", "<0xA5>", "\u2581a"),
        ("<0xA0>", "\u2581a", "b"),
    ],
)
def test_reward_samples_and_answers_have_one_text(
    tmp_path: Path, kind: str, said: tuple[str, ...]
) -> None:
    """That of the response's tokens alone, as TRL and verl decode them for rewards."""
    tokenizer = bytes_and_words()
    library: Any = tokenizer.library
    library.add_special_tokens({"additional_special_tokens": ["</s>", "<think>"]})
    library.backend_tokenizer.decoder = DECODERS[kind]
    library.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokens = library.convert_tokens_to_ids(list(said))
    whole = library.decode(tokens, skip_special_tokens=True)
    stream = TextStream(tokenizer)
    assert "".join(stream.add([token]) for token in tokens) + stream.rest() == whole
    decode = open_decoder(tmp_path, field="spec.reward.function")
    assert ResponseText().read(decode, tokens) == tokenizer.decode(tokens) == whole
    shown = library.decode(tokens, skip_special_tokens=False)
    assert "".join(TokenText(tmp_path).pieces(tokens)) == tokenizer.decode(tokens, special=True)
    assert ResponseText(keep_special=True).read(decode, tokens) == shown


def test_special_tokens_are_no_text() -> None:
    tokenizer = characters()
    stream = TextStream(tokenizer)
    assert stream.add([*tokenizer.encode("hi"), 2]) == "hi"


def test_a_stop_string_is_left_out_though_it_comes_in_pieces() -> None:
    tokenizer = characters()
    stream = TextStream(tokenizer, ["END", "\n\n"])
    written = "".join(stream.add([token]) for token in tokenizer.encode("an EN, the ENDing"))
    assert written == "an EN, the "
    assert stream.stopped
    assert stream.rest() == ""


def test_what_looked_like_a_stop_string_comes_at_the_end() -> None:
    tokenizer = characters()
    stream = TextStream(tokenizer, ["END"])
    assert stream.add(tokenizer.encode("the EN")) == "the "
    assert stream.rest() == "EN"
    assert not stream.stopped


def test_the_first_of_several_stop_strings_counts() -> None:
    tokenizer = characters()
    stream = TextStream(tokenizer, ["bc", "ab"])
    assert stream.add(tokenizer.encode("xabc")) == "x"


def sentence_pieces(prepend: str, *, strips: bool) -> ModelTokenizer:
    """Unigram with a mark for spaces, as T5 has it, and added tokens; no BOS and no padding."""
    pieces = [("<unk>", 0.0), ("\u2581", -3.0), ("\u2581the", -2.0), ("\u2581cat", -2.0)]
    pieces += [(letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    backend.decoder = decoders.Metaspace(prepend_scheme=prepend)
    if strips:
        backend.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<i>", lstrip=True)])
    library = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="</s>"
    )
    return ModelTokenizer(Path("/model"), library, frozenset({library.eos_token_id}))


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("prepend", ["always", "first", "never"])
def test_a_stream_says_what_the_reward_reads(prepend: str, strips: bool) -> None:
    """Also where a text comes back from its tokens with other spaces and letters."""
    tokenizer = sentence_pieces(prepend, strips=strips)
    for text in ("the cat", "  The cat ", "<think>the cat<think> a", "The cat <i> b", " the"):
        tokens = tokenizer.encode(text)
        stream = TextStream(tokenizer)
        pieces = [stream.add([token]) for token in tokens]
        assert "".join(pieces) + stream.rest() == tokenizer.decode(tokens)
