"""What messages say beside role and content, which the chat template may leave out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
            if self._written(messages, key, place=place):
                continue
            problem = f"{place}: the model's chat template does not write {key!r:.60} of a message"
            if key == _CALLS:
                advice = "name a model whose template does, or write the calls as content"
                raise SpecError(self._field, f"{problem}; {advice}")
            log.warning("%s: %s: nothing reads it", self._field, problem)

    def _written(self, messages: Sequence[Message], key: str, *, place: str) -> bool:
        """Whether the template names the key, or writes another text without it."""
        if key in str(self._model.tokenizer.library.chat_template):
            return True
        without = [{k: value for k, value in m.items() if k != key} for m in messages]
        try:
            with_it, without_it = (
                self._model.chat_text(each, answer_follows=False, place=place, field=self._field)
                for each in (messages, without)
            )
        except SpecError:  # is said for what it is where the chat is read
            return True
        return with_it != without_it
