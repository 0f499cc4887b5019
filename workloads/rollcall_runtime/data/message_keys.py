"""What messages say beside role and content, which the chat template may leave out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rollcall_runtime.models.chat_template import leaves_out
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_runtime.data.model_input import Message, ModelInput

log = logging.getLogger(__name__)

_ANYWHERE = frozenset({"role", "content", "weight", "name", "id", "tool_call_id"})
_CALLS = "tool_calls"


class MessageKeys:
    """The keys of a column's messages; each is looked at in the first row that has it."""

    def __init__(self, model: ModelInput, *, field: str) -> None:
        self._model, self._field = model, field
        self._known = set(_ANYWHERE)

    def check(self, messages: Sequence[Message], *, place: str) -> None:
        """Log a key that the template leaves out. SpecError for calls of tools: the turn that
        makes them would be an empty one.
        """
        for key in sorted({key for m in messages for key in m if m[key]} - self._known):
            self._known.add(key)
            if not self._leaves_out(key, messages, place=place):
                continue
            problem = f"{place}: the model's chat template does not write {key!r:.60} of a message"
            if key == _CALLS:
                advice = "name a model whose template does, or write the calls as content"
                raise SpecError(self._field, f"{problem}; {advice}")
            log.warning("%s: %s: nothing reads it", self._field, problem)

    def _leaves_out(self, key: str, messages: Sequence[Message], *, place: str) -> bool:
        def write(chat: Sequence[Mapping[str, Any]]) -> str:
            given = [dict(message) for message in chat]
            return self._model.chat_text(
                given, answer_follows=False, place=place, field=self._field
            )

        template = str(self._model.tokenizer.library.chat_template)
        try:
            return leaves_out(key, messages, template=template, write=write)
        except SpecError:  # is said for what it is where the chat is read
            return False
