"""Rows whose text prompt becomes a chat, for a model that was taught to answer in chats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcall_runtime.data.row_kind import find_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollcall_runtime.data.rows import Rows

COMPLETION = "completion"


class ChatRows:
    """See Rows: those of `rows`, with the prompt's text as the turn of a user, after `system`.

    `prompt` is the column of the prompt; empty: whichever there is. A completion that is a text
    becomes the assistant's turn. SpecError at `field` if there is no column of a prompt.
    """

    def __init__(self, rows: Rows, *, prompt: str, system: str, field: str) -> None:
        self._rows, self._field = rows, field
        self._prompt = find_column(rows.columns, prompt, place=rows.place(0), field=field)
        self._before = [{"role": "system", "content": system}] if system else []

    @property
    def columns(self) -> Sequence[str]:
        return self._rows.columns

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, number: int) -> dict[str, Any]:
        return self._chat(self._rows.row(number))

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        return map(self._chat, self._rows.scan(columns))

    def place(self, number: int) -> str:
        return self._rows.place(number)

    def close(self) -> None:
        self._rows.close()

    def _chat(self, row: dict[str, Any]) -> dict[str, Any]:
        """What is no text stays as it is: the kind of the column is checked later."""
        made = dict(row)
        for name, role in ((self._prompt, "user"), (COMPLETION, "assistant")):
            text = made.get(name)
            if isinstance(text, str) and text:
                before = self._before if name == self._prompt else []
                made[name] = [*before, {"role": role, "content": text}]
        return made
