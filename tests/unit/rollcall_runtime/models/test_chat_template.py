"""A chat template is foreign code: it ends within bounds, whatever it does."""

import threading
import time
from pathlib import Path

import pytest

from rollcall_runtime.models import chat_template
from rollcall_runtime.models.tokenizer import ModelTokenizer
from tests.process.engines.tiny_models import tiny_tokenizer

CHAT = [{"role": "user", "content": "hi"}]
LOOPS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


def tokenizer(template: str) -> ModelTokenizer:
    library = tiny_tokenizer()
    library.chat_template = template
    return ModelTokenizer(Path("/model"), library, frozenset({2}))


@pytest.mark.parametrize(
    "template",
    [
        LOOPS,
        pytest.param("{{ 9 ** (9 ** 9) > 1 }}", marks=pytest.mark.slow),
        "{{ 'x' * 10 ** 10 }}",
        pytest.param("{{ 'x' * 10 ** 8 }}", marks=pytest.mark.slow),
    ],
    ids=["loops", "power", "memory", "text"],
)
def test_a_template_that_exceeds_its_bounds_refuses_the_messages(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"refuses these messages: it takes more than .* loops"):
        tokenizer(template).chat_text(CHAT)
    assert time.monotonic() - began < 30
    monkeypatch.undo()
    assert tokenizer("{{ messages[0].content }}").chat_text(CHAT) == "hi", "the next one is served"


def test_a_template_outlives_the_thread_that_rendered_first() -> None:
    chat_template._process.cache_clear()
    texts: list[str] = []
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: texts.append(tokenizer("{{ messages[0].content }}").chat_text(CHAT))
        )
        thread.start()
        thread.join()
    assert texts == ["hi", "hi"]


def test_what_is_null_is_not_there_and_a_chat_has_messages() -> None:
    asked = tokenizer("{{ 'content' in messages[0] }}{{ bos_token }}{{ tools is none }}")
    assert asked.chat_text([{"role": "user", "content": None}]) == "False<s>True"
    with pytest.raises(ValueError, match="at least one message"):
        asked.chat_text([])


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"refuses these messages: .*not JSON serializable"):
        tokenizer("{{ messages }}").chat_text([{"role": "user", "content": Path("x")}])


def test_half_of_a_pair_and_long_texts_pass() -> None:
    written = tokenizer("{{ messages[0].content }}")
    for text in ("a \ud83d cat", "\u6f22" * 500_000):
        assert written.chat_text([{"role": "user", "content": text}]) == text
