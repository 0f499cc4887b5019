"""What a model takes whose tokenizer has one token a character; its chat template is chosen."""

from pathlib import Path
from typing import Any, cast

from tokenizers.decoders import ByteLevel as ByteLevelText
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import ByteLevel as ByteLevelPlaces
from tokenizers.processors import TemplateProcessing

from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.models.tokenizer import ModelTokenizer
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import CHAT_TEMPLATE, tiny_tokenizer

START, END = 1, 2
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


def character_model(
    template: str | None = CHAT_TEMPLATE, *, context: int | None = 200
) -> ModelInput:
    """A model of that template."""
    library = tiny_tokenizer()
    library.chat_template = template
    tokenizer = ModelTokenizer(Path("/model"), library, frozenset({END}))
    return ModelInput(len(library), context, lambda: tokenizer)


def appending_model() -> ModelInput:
    """A model whose tokenizer writes <s> before a text and, as with `add_eos_token`, its end behind
    it.
    """
    library = tiny_tokenizer()
    cast("Any", library).backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A <|im_end|>", special_tokens=[("<s>", 0), ("<|im_end|>", END)]
    )
    tokenizer = ModelTokenizer(Path("/model"), library, frozenset({END}))
    return ModelInput(len(library), 200, lambda: tokenizer)


def no_tokenizer(vocabulary: int = 13, context: int = 13) -> ModelInput:
    """As the built-in decoder."""

    def fail() -> ModelTokenizer:
        raise SpecError("spec.model.path", "the model has no tokenizer")

    return ModelInput(vocabulary, context, fail)


def trimming_model(template: str | None = CHAT_TEMPLATE) -> ModelInput:
    """A model whose tokenizer says of a space that it stands for no character."""
    library = tiny_tokenizer()
    library.chat_template = template
    backend = cast("Any", library).backend_tokenizer
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.post_processor = ByteLevelPlaces(trim_offsets=True)
    backend.model = BPE(vocab={**backend.get_vocab(), "\u0120": 200, "\u010a": 201}, merges=[])
    backend.decoder = ByteLevelText()
    tokenizer = ModelTokenizer(Path("/model"), library, frozenset({END}))
    return ModelInput(300, 200, lambda: tokenizer)
