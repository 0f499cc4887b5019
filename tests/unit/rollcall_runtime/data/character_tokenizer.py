"""A tokenizer of characters with a chat template, made on the spot; in place of a model's own."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.models.tokenizer import ModelTokenizer

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<unk>")
START, END = 1, 2
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"

CHATML = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] + '\n' + message['content'] }}<|im_end|>{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\n' }}{%- endif -%}
"""
# As Qwen3's: thinking is left out of all turns but the last.
THINKING = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] + '\n' }}
{%- if message['role'] == 'assistant' and loop.last -%}<think></think>{%- endif -%}
{{ message['content'] }}<|im_end|>{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\n' }}{%- endif -%}
"""
MARKED = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
A:{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}
{%- else -%}
U:{{ message['content'] }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}A:{%- endif -%}
"""
STRICT = "{{ raise_exception('roles must alternate') }}"


def character_tokenizer(template: str | None = CHATML) -> ModelTokenizer:
    """One token a character."""
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *CHARACTERS))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    library: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", unk_token="<unk>", chat_template=template
    )
    return ModelTokenizer(Path("/model"), library, frozenset({END}), None)


def character_model(template: str | None = CHATML, *, context: int | None = 200) -> ModelInput:
    """What a model takes that has this tokenizer."""
    tokenizer = character_tokenizer(template)
    return ModelInput(len(SPECIAL) + len(CHARACTERS), context, lambda: tokenizer)


def no_tokenizer(vocabulary: int = 13, context: int = 13) -> ModelInput:
    """As the built-in decoder."""

    def fail() -> ModelTokenizer:
        raise AssertionError("tokens need no tokenizer")

    return ModelInput(vocabulary, context, fail)
