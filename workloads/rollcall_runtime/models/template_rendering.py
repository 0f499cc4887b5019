"""A chat as its template writes it, by transformers; a BoundedWorker calls this."""

from typing import Any

from transformers.utils import chat_template_utils

_library: Any = chat_template_utils  # whose types are narrower than what it takes


def render(
    template: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    variables: dict[str, Any],
    *options: bool,
) -> dict[str, Any]:
    """`text`, and the `spans` of its characters that the template marks as generated.

    `options`: whether the answer follows, and whether spans are asked for. `refused` alone says
    what the template raised.
    """
    answer_follows, marked = options
    try:
        texts, spans = _library.render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=template,
            add_generation_prompt=answer_follows,
            return_assistant_tokens_mask=marked,
            **variables,
        )
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a template may raise what it likes
        return {"refused": str(error)[:1000] or type(error).__name__}
    return {"text": texts[0], "spans": spans[0] if marked else []}
