"""Renders chat templates, which are code of whoever made the model, within bounds.

Jinja's sandbox keeps files and the network from a template, but bounds neither its time nor its
memory. So templates run in a process of their own, one for all tokenizers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from rollcall_runtime.worker.bounded_worker import (
    BoundedCallError,
    BoundedWorker,
    OutOfBoundsError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

SECONDS = 5.0  # of processor time for one chat
MEMORY = 1 << 30  # bytes of the process
MOST_BYTES = 64 << 20  # of a rendered chat, as JSON
_WITHIN = 60.0
_MODULE = "rollcall_runtime.models.template_rendering"
_thread = ThreadPoolExecutor(1)  # one at a time; the process ends with the thread that starts it


def rendered(
    library: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    answer_follows: bool,
    marked: bool = False,
) -> tuple[str, list[tuple[int, int]]]:
    """The chat as the template of the tokenizer `library` writes it, and what it generates.

    The latter are spans of characters, if they are asked for (`marked`). ValueError if the template
    refuses the messages or exceeds its bounds; ImportError if its process cannot start.
    """
    if not messages:
        raise ValueError("a chat must have at least one message")
    # Most templates write "None" for a null and can do without the key; transformers does the same.
    chat = [{key: value for key, value in m.items() if value is not None} for m in messages]
    template = library.get_chat_template(tools=tools)
    asked = (template, chat, tools, library.special_tokens_map, answer_follows, marked)
    try:
        answer = _thread.submit(_rendered, *asked).result()
    except OutOfBoundsError as error:
        problem = (
            f"it takes more than {SECONDS:g} s of processor time, {MEMORY >> 30} GiB of memory, or "
            f"{MOST_BYTES >> 20} MiB of text; look for loops within loops"
        )
        raise ValueError(problem) from error
    except BoundedCallError as error:
        raise ValueError(str(error)) from error
    if "refused" in answer:
        raise ValueError(answer["refused"])
    return answer["text"], [(begin, end) for begin, end in answer["spans"]]


def foreign_role(messages: Sequence[Mapping[str, Any]], template: str) -> str | None:
    """The first role that is none of ROLES and that the template does not name.

    Many templates copy the name of such a role into the text. The model would then read turns of a
    kind that it was not trained on.
    """
    found = (message["role"] for message in messages if message["role"] not in ROLES)
    return next((r for r in found if f"'{r}'" not in template and f'"{r}"' not in template), None)


def leaves_out(
    key: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: str,
    write: Callable[[Sequence[Mapping[str, Any]]], str],
) -> bool:
    """Whether what messages have at `key` is not in what the template writes; `write` asks it.

    A template that names the key may have a reason: Qwen3's leaves out former thoughts.
    """
    if key in template:
        return False
    without = [{k: value for k, value in m.items() if k != key} for m in messages]
    return write(messages) == write(without)


def _rendered(*asked: Any) -> dict[str, Any]:
    answer: dict[str, Any] = _process().call("render", *asked, seconds=SECONDS, within=_WITHIN)
    return answer


@cache
def _process() -> BoundedWorker:
    return BoundedWorker(_MODULE, memory=MEMORY, most_bytes=MOST_BYTES)
